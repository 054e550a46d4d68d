"""NIXL's Python API, on top of dlslime: `from dlslime_backend.compat.nixl import nixl_agent`.

For programs that import `nixl` themselves (vLLM, Megatron-LM, Ray), DLSLIME_PROVIDE=nixl makes them
find this, unless NIXL is installed; for SGLang there is `dlslime_backend.integrations.sglang`. What
behaves in another way than NIXL 1.5.1:

* every name of a backend ("UCX", ...) means dlslime, which chooses the way to a peer itself;
* memory is DRAM or VRAM; other kinds raise `nixlNotSupportedError`. Transfers with VRAM begin when
  the current stream has come to them;
* metadata goes by the program's own means: there is no listener thread and no metadata server;
* two descriptors of a transfer that overlap where they are written are refused;
* an error's text says what failed, with both sides' objects and numbers.
"""

from dlslime_backend.compat.nixl._api import (
    DEFAULT_COMM_PORT,
    nixl_agent,
    nixl_agent_config,
    nixl_backend_handle,
    nixl_prepped_dlist_handle,
    nixl_thread_sync_t,
    nixl_xfer_handle,
)

__all__ = [
    "DEFAULT_COMM_PORT",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]
