"""NIXL's Python API, implemented by dlslime: `from dlslime_backend.compat.nixl import nixl_agent`.

For programs that import `nixl` (vLLM, Megatron-LM, Ray), DLSLIME_PROVIDE=nixl makes the import find
the package, unless NIXL is installed; SGLang has `dlslime_backend.integrations.sglang`. Differences
from NIXL 1.5.1:

* every name of a backend ("UCX", ...) means dlslime, which chooses the route to a peer;
* memory is DRAM or VRAM; other kinds raise `nixlNotSupportedError`. Transfers of VRAM begin after
  the work queued before on the current stream;
* the program exchanges metadata by its own means: there is no listener thread and no metadata
  server;
* descriptors of a transfer must not overlap where bytes are written;
* `agent_name_of(metadata)` returns the name of the agent described by metadata;
* the text of an error names the cause, with the objects and numbers of both sides.
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
from dlslime_backend.compat.nixl._remote import agent_name_of

__all__ = [
    "DEFAULT_COMM_PORT",
    "agent_name_of",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]
