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
* an agent that can't be reached is forgotten, so that SGLang makes the next connection;
* what prefill is told and can't use fails that registration or that request, where it would end
  SGLang's thread, and with it all requests that come later.

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
from dlslime_backend.compat.nixl._remote import Metadata

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
_MOST_LOGGED = 64  # lines about messages that were refused
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


class _Screened:
    """A socket of SGLang's whose messages are looked at before SGLang's thread gets them."""

    def __init__(self, socket: Any, takes: Callable[[list[bytes]], bool]) -> None:
        self._socket = socket
        self._takes = takes

    def recv_multipart(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            message = self._socket.recv_multipart(*args, **kwargs)
            if self._takes(message):
                return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _Careful:
    """Of SGLang's manager: what any process may send to prefill's thread, and would end it."""

    _refused = 0
    _screened: _Screened

    @property
    def server_socket(self) -> Any:
        return self._screened

    @server_socket.setter
    def server_socket(self, socket: Any) -> None:
        self._screened = _Screened(socket, self._takes)

    def _takes(self, message: list[bytes]) -> bool:
        """Decode a message as SGLang is about to; what can't be fails its request."""
        whole: Any = self
        if whole.disaggregation_mode.value != "prefill":
            return True  # decode's thread does this itself
        try:
            _require_decodable(message)
        except Exception as error:  # noqa: BLE001  (whatever it is would end the thread)
            self._refuse("a message", error)
            with contextlib.suppress(ValueError, IndexError):
                room = int(message[1].decode("ascii"))
                done = _part("sglang.srt.disaggregation.base.conn", "KVPoll").Success
                if whole.request_status.get(room, done) != done:
                    reason = "dlslime: what decode has sent of it is malformed"
                    whole.conclude_failure(bootstrap_room=room, failure_reason=reason)
            return False
        return True

    def _add_remote_peer(self, info: Any) -> None:
        """Get to know a decode server; one that can't be used stays unknown: its requests fail."""
        whole: Any = self
        name = info.agent_name
        if name in whole.decode_kv_args_table:
            return  # as SGLang
        try:
            _require_own_name(info, whole.agent.name)
            super()._add_remote_peer(info)  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001  (SGLang's thread would end)
            self._refuse(f"the decode server {printable(name)}", error)
            # What SGLang has kept of it, before it came to what is wrong.
            if whole.decode_kv_args_table.pop(name, None) is not None:
                for table in ("prep_handles", "prep_handles_slice_dst", "_prepared_state_plans"):
                    getattr(whole, table, {}).pop(name, None)
                whole.agent.remove_remote_agent(name)

    def _refuse(self, what: str, error: Exception) -> None:
        self._refused += 1
        if self._refused <= _MOST_LOGGED:
            kind = type(error).__name__
            _logger.warning("%s is refused: %s: %s", what, kind, printable(str(error)))


def _require_own_name(info: Any, here: str) -> None:
    """Refuse a decode server that would take the place of another one, or of this agent."""
    name = info.agent_name
    if name in ("", "NIXL_INIT_AGENT", here):  # the first two are this agent, too
        raise ValueError("this is no name of another agent")
    if Metadata.decode(info.agent_metadata).name != name:
        raise ValueError("its metadata is another agent's")


def _require_decodable(message: list[bytes]) -> None:
    """Raise what SGLang's thread would end by: it does the same with the message."""
    tag, *rest = message
    if tag == b"ABORT":
        return  # this is looked at by SGLang
    if tag in (b"WATERMARK", b"STAGING_RSP"):
        count = 2 if tag == b"WATERMARK" else 5  # integers, and then a name
        for number in range(count):
            int(rest[number].decode("ascii"))
        if tag == b"STAGING_RSP" or len(rest) > count:
            rest[count].decode("ascii")
        return
    if tag != _part(_NIXL, "GUARD"):
        raise ValueError("it is none of SGLang's")
    room = rest[0].decode("ascii")
    rest[3].decode("ascii")
    if room == "None":
        _part(_NIXL, "KVArgsRegisterInfo").from_zmq(rest)
    else:
        _part(_NIXL, "TransferInfo").from_zmq(rest)


@functools.cache
def _manager(base: Any) -> Any:
    module = importlib.import_module(_NIXL)
    known = getattr(module, "_NIXL_TRANSPORT_ERRORS", None)
    if known is not None:  # these get a line in the log, and others a traceback
        module._NIXL_TRANSPORT_ERRORS = (*known, *_FAILED)  # type: ignore[attr-defined]

    class DlslimeKVManager(_Careful, base):
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
