"""SGLang's prefill and decode servers, with KV caches that move over dlslime.

For SGLang 0.5.23; other versions get a warning, or an error where they lack what this needs. Where
both packages are installed, SGLang finds `plugin` itself, and there is nothing to do but

    sglang serve --disaggregation-transfer-backend dlslime --disaggregation-mode ...

on both sides, on CUDA GPUs or with --device cpu. Programs that SGLang finds no plugins for
(SGLANG_PLUGINS names others, or the package is on PYTHONPATH only) call `install()` in each
process, before they make ServerArgs.

SGLang's NIXL backend does the work, as it is: its bootstrap server, manager, senders and receivers,
over `dlslime_backend.compat.nixl`, also where NIXL itself is installed: only that backend's manager
gets ours. `--disaggregation-transfer-backend nixl` with SGLANG_DISAGGREGATION_NIXL_BACKEND=DLSLIME
is the same, which is what the name turns into; where SGLang starts processes that do not inherit
the environment (Ray's), set the variable there. What is added to the NIXL API here:

* SGLang calls all memory of its device VRAM: on the device "cpu" that is DRAM;
* a transfer that has failed is reported as over, since it touches no memory any more: so the
  request fails at both servers at once, and not at decode's time-out;
* an agent that can't be reached is forgotten, so that SGLang makes the next connection.

Whatever SGLang takes with its NIXL backend only under the name "nixl" before it looks at
disaggregation is refused under the name "dlslime"; use the variable there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from dlslime_backend._untrusted import printable
from dlslime_backend.compat.nixl import _api
from dlslime_backend.compat.nixl import _bindings as b

NAME = "dlslime"
VERSIONS = ("0.5.23",)  # what this was tested with

_BACKEND = "DLSLIME"  # of those that compat.nixl answers to, the one that SGLang knows nothing of
_VARIABLE = "SGLANG_DISAGGREGATION_NIXL_BACKEND"
_NIXL = "sglang.srt.disaggregation.nixl.conn"
_CHOICES = ("sglang.srt.arg_groups.choices", "DISAGG_TRANSFER_BACKEND_CHOICES")
_RESOLVE = ("sglang.srt.arg_groups.pd_disaggregation_hook", "handle_pd_disaggregation")
_CHOOSE = ("sglang.srt.disaggregation.utils", "get_kv_class")
_FAILED = (
    b.nixlRemoteDisconnectError,
    b.nixlBackendError,
    b.nixlCancelledError,
    b.nixlInvalidParamError,
)
_logger = logging.getLogger("dlslime.sglang")


def plugin() -> None:
    """Tell SGLang of the name "dlslime"; SGLang calls this by the entry point, in each process.

    Does nothing the second time.

    Raises:
        RuntimeError: this SGLang lacks something that is needed; the text has its name.
    """
    choices = _part(*_CHOICES)
    if NAME in choices:
        return
    _warn_of_version()
    registry = _part("sglang.srt.plugins.hook_registry", "HookRegistry")
    kinds = _part("sglang.srt.plugins.hook_registry", "HookType")
    _part(*_RESOLVE)
    _part(*_CHOOSE)
    registry.register(".".join(_RESOLVE), _resolve, kinds.BEFORE)
    registry.register(".".join(_CHOOSE), _choose, kinds.AROUND)
    choices.append(NAME)


def install() -> None:
    """Do what `plugin` does, and let SGLang apply it: for processes where it finds no plugins.

    Raises:
        RuntimeError: SGLang is not installed, or lacks something that is needed.
    """
    plugin()
    _part("sglang.srt.plugins.hook_registry", "HookRegistry").apply_hooks()


def _part(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"dlslime: no {module}.{name} in this SGLang ({error}); "
            f"supported: {', '.join(VERSIONS)}"
        ) from error


def _warn_of_version() -> None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("sglang")
        if version not in VERSIONS:
            text = "dlslime was tested with SGLang %s, and this is %s"
            _logger.warning(text, ", ".join(VERSIONS), version)


def _require_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise ValueError(
            f"dlslime moves KV caches on CPUs and CUDA GPUs, and SGLang's device is {device!r}: "
            "use another --disaggregation-transfer-backend"
        )


def _resolve(server_args: Any) -> None:
    """Before SGLang looks at disaggregation: the name is SGLang's "nixl", with a variable."""
    view = _part("sglang.srt.arg_groups.overrides", "resolving_view")(server_args)
    if view.disaggregation_transfer_backend != NAME:
        return
    if view.device is not None:
        _require_device(view.device)
    os.environ[_VARIABLE] = _BACKEND  # for the processes that SGLang starts, too
    declare = _part("sglang.srt.arg_groups.overrides", "declare_resolution")
    declare(server_args, NAME, disaggregation_transfer_backend="nixl")


def _choose(original: Callable[[Any, Any], Any], transfer_backend: Any, class_type: Any) -> Any:
    """Around SGLang's choice of a class: the manager gets dlslime for NIXL."""
    chosen = original(transfer_backend, class_type)
    ours = transfer_backend.value == "nixl" and os.environ.get(_VARIABLE) == _BACKEND
    return _manager(chosen) if ours and class_type.value == "manager" else chosen


@functools.cache
def _manager(base: Any) -> Any:
    module = importlib.import_module(_NIXL)
    known = getattr(module, "_NIXL_TRANSPORT_ERRORS", None)
    if known is not None:  # these get a line in the log, and others a traceback
        module._NIXL_TRANSPORT_ERRORS = (*known, *_FAILED)  # type: ignore[attr-defined]

    class DlslimeKVManager(base):
        """SGLang's manager of the NIXL backend, with an agent of dlslime's."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            device = _part("sglang.srt.runtime_context", "get_device")().device
            _require_device(device)
            with _provided(CpuAgent if device == "cpu" else Agent):
                super().__init__(*args, **kwargs)

    return DlslimeKVManager


@contextlib.contextmanager
def _provided(agent: type[Agent]) -> Iterator[None]:
    """Makes `from nixl._api import` find ours, with this agent, whatever is installed."""
    name = "nixl._api"
    module = types.ModuleType(name, _api.__doc__)
    vars(module).update((key, value) for key, value in vars(_api).items() if key[:2] != "__")
    module.nixl_agent = agent  # type: ignore[attr-defined]
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


class Agent(_api.nixl_agent):
    """An agent as SGLang uses it; see the top of this file for what is different."""

    def __init__(self, agent_name: str, nixl_conf: _api.nixl_agent_config | None = None) -> None:
        super().__init__(agent_name, nixl_conf)
        # Of which agents it was logged that transfers with them fail, and how.
        self._reported: weakref.WeakKeyDictionary[Any, set[type]] = weakref.WeakKeyDictionary()

    def check_xfer_state(self, handle: _api.nixl_xfer_handle) -> str:
        """Tell whether a transfer goes on ("PROC"), is over ("DONE") or has failed ("ERR").

        One that has failed touches no memory any more; the log says why it has.

        Raises:
            nixlNotPostedError: it was never begun.
        """
        try:
            return super().check_xfer_state(handle)
        except _FAILED as error:
            remote = handle.remote
            reported = self._reported.setdefault(remote, set())
            if type(error) not in reported:
                reported.add(type(error))
                name, text = printable(remote.name), printable(str(error))
                _logger.warning("transfers with agent %s fail: %s", name, text)
            unreachable = isinstance(error, b.nixlRemoteDisconnectError)
            if unreachable and self._remotes.get(remote.name) is remote:
                self.remove_remote_agent(remote.name)
            return "ERR"


class CpuAgent(Agent):
    """The same where SGLang's device is "cpu"."""

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> b.nixlXferDList | None:
        """See `nixl_agent.get_xfer_descs`; "VRAM" is DRAM."""
        return super().get_xfer_descs(descs, "DRAM" if mem_type == "VRAM" else mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> b.nixlRegDList | None:
        """See `nixl_agent.get_reg_descs`; "VRAM" is DRAM."""
        return super().get_reg_descs(descs, "DRAM" if mem_type == "VRAM" else mem_type)
