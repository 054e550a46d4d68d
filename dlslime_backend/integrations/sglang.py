"""SGLang's prefill and decode servers, with KV caches that move over dlslime.

For SGLang 0.5.23; other versions get a warning, or an error if they lack a needed part. If both
packages are installed, SGLang finds `plugin` by an entry point, and only the command line changes:

    sglang serve --disaggregation-transfer-backend dlslime --disaggregation-mode ...

on both sides, on CUDA GPUs or with --device cpu. Programs without SGLang's plugins (SGLANG_PLUGINS
names other plugins, or the package is on PYTHONPATH only) call `install()` in each process, before
they make ServerArgs.

SGLang's NIXL backend does the work, unchanged: its bootstrap server, manager, senders and
receivers, over `dlslime_backend.compat.nixl`. NIXL may be installed as well; only the manager of
the backend gets dlslime's module. The name "dlslime" is resolved to
`--disaggregation-transfer-backend nixl` with SGLANG_DISAGGREGATION_NIXL_BACKEND=DLSLIME, and both
may also be set by hand; if SGLang starts processes without the environment (Ray's), set the
variable in their environment. Differences from the NIXL API:

* SGLang calls all memory of its device VRAM: on the device "cpu", VRAM means DRAM;
* a failed transfer has the state "ERR" instead of raising, since it touches no memory any more: the
  request fails at both servers at once, and not at decode's time-out;
* an unreachable agent is forgotten, so that SGLang makes the next connection;
* malformed messages to prefill fail their registration or their request; in SGLang they end the
  thread, and with it all later requests.

Options that SGLang accepts only with the name "nixl", and checks before disaggregation is resolved,
are refused with the name "dlslime": use the variable for such options.
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

# `_api` and `_bindings` are NIXL's own names of modules, from which programs import.
from dlslime_backend.compat.nixl import (
    _api,
    agent_name_of,
    nixl_agent,
    nixl_agent_config,
    nixl_xfer_handle,
)
from dlslime_backend.compat.nixl import _bindings as b

NAME = "dlslime"
VERSIONS = ("0.5.23",)  # tested versions

# A backend name of compat.nixl that is unknown to SGLang.
_BACKEND = "DLSLIME"
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
_MOST_LOGGED = 64  # lines about refused messages
_logger = logging.getLogger("dlslime.sglang")


def plugin() -> None:
    """Register the name "dlslime" with SGLang; SGLang calls the entry point in each process.

    Does nothing the second time.

    Raises:
        RuntimeError: SGLang lacks a needed part; the text has its name.
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
    """Do the work of `plugin` and apply the hooks, in processes where SGLang finds no plugins.

    Raises:
        RuntimeError: SGLang is not installed, or lacks a needed part.
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
    """Resolve "dlslime" to "nixl" and the variable, before SGLang looks at disaggregation."""
    view = _part("sglang.srt.arg_groups.overrides", "resolving_view")(server_args)
    if view.disaggregation_transfer_backend != NAME:
        return
    if view.device is not None:
        _require_device(view.device)
    os.environ[_VARIABLE] = _BACKEND  # also for processes started by SGLang
    declare = _part("sglang.srt.arg_groups.overrides", "declare_resolution")
    declare(server_args, NAME, disaggregation_transfer_backend="nixl")


def _choose(original: Callable[[Any, Any], Any], transfer_backend: Any, class_type: Any) -> Any:
    """Return SGLang's class, or dlslime's manager instead of the manager of the NIXL backend."""
    chosen = original(transfer_backend, class_type)
    ours = transfer_backend.value == "nixl" and os.environ.get(_VARIABLE) == _BACKEND
    return _manager(chosen) if ours and class_type.value == "manager" else chosen


class _Screened:
    """A socket of SGLang whose malformed messages are dropped before SGLang's thread gets them."""

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
    """Part of the manager: guards prefill's thread from fatal messages of other processes."""

    _refused = 0
    _screened: _Screened

    @property
    def server_socket(self) -> Any:
        return self._screened

    @server_socket.setter
    def server_socket(self, socket: Any) -> None:
        self._screened = _Screened(socket, self._takes)

    def _takes(self, message: list[bytes]) -> bool:
        """Return whether SGLang can decode a message; if not, fail the message's request."""
        whole: Any = self
        if whole.disaggregation_mode.value != "prefill":
            return True  # decode's thread guards itself
        try:
            _require_decodable(message)
        except Exception as error:  # noqa: BLE001 (any error would end the thread)
            self._refuse("a message", error)
            with contextlib.suppress(ValueError, IndexError):
                room = int(message[1].decode("ascii"))
                done = _part("sglang.srt.disaggregation.base.conn", "KVPoll").Success
                if whole.request_status.get(room, done) != done:
                    reason = "dlslime: a message of decode about the request is malformed"
                    whole.conclude_failure(bootstrap_room=room, failure_reason=reason)
            return False
        return True

    def _add_remote_peer(self, info: Any) -> None:
        """Add a decode server; an invalid server remains unknown, and its requests fail."""
        whole: Any = self
        name = info.agent_name
        if name in whole.decode_kv_args_table:
            return  # as in SGLang
        try:
            _require_own_name(info, whole.agent.name)
            super()._add_remote_peer(info)  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 (SGLang's thread would end)
            self._refuse(f"the decode server {printable(name)}", error)
            # Parts of the server that SGLang stored before the error.
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
    """Raise ValueError for a decode server that would replace another server or the own agent."""
    name = info.agent_name
    if name in ("", "NIXL_INIT_AGENT", here):  # "" and NIXL_INIT_AGENT mean the own agent
        raise ValueError(f"the name {printable(name)!r} is empty, reserved or this server's own")
    if agent_name_of(info.agent_metadata) != name:
        raise ValueError("the metadata are of an agent with a different name")


def _require_decodable(message: list[bytes]) -> None:
    """Decode a message as SGLang's thread does, and raise the error that would end the thread."""
    tag, *rest = message
    if tag == b"ABORT":
        return  # SGLang checks the message
    if tag in (b"WATERMARK", b"STAGING_RSP"):
        count = 2 if tag == b"WATERMARK" else 5  # integers, then a name
        for number in range(count):
            int(rest[number].decode("ascii"))
        if tag == b"STAGING_RSP" or len(rest) > count:
            rest[count].decode("ascii")
        return
    if tag != _part(_NIXL, "GUARD"):
        raise ValueError(f"the tag {printable(repr(tag))} is none of SGLang's")
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
    if known is not None:  # types logged without a traceback
        module._NIXL_TRANSPORT_ERRORS = (*known, *_FAILED)  # type: ignore[attr-defined]

    class DlslimeKVManager(_Careful, base):
        """SGLang's manager of the NIXL backend with an agent of dlslime."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            device = _part("sglang.srt.runtime_context", "get_device")().device
            _require_device(device)
            with _provided(CpuAgent if device == "cpu" else Agent):
                super().__init__(*args, **kwargs)

    return DlslimeKVManager


@contextlib.contextmanager
def _provided(agent: type[Agent]) -> Iterator[None]:
    """Make `from nixl._api import` find dlslime's module with `agent`, and hide NIXL."""
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


class Agent(nixl_agent):
    """An agent for SGLang; the docstring of the module lists the differences."""

    def __init__(self, agent_name: str, nixl_conf: nixl_agent_config | None = None) -> None:
        super().__init__(agent_name, nixl_conf)
        # By remote agent, the types of errors already logged.
        self._reported: weakref.WeakKeyDictionary[Any, set[type]] = weakref.WeakKeyDictionary()

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Return "PROC" (in progress), "DONE" or "ERR" (failed).

        A failed transfer touches no memory any more; the first error of each type is logged per
        agent.

        Raises:
            nixlNotPostedError: the transfer was never posted.
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
    """An agent for SGLang on the device "cpu"."""

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> b.nixlXferDList | None:
        """See `nixl_agent.get_xfer_descs`; "VRAM" means DRAM."""
        return super().get_xfer_descs(descs, "DRAM" if mem_type == "VRAM" else mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> b.nixlRegDList | None:
        """See `nixl_agent.get_reg_descs`; "VRAM" means DRAM."""
        return super().get_reg_descs(descs, "DRAM" if mem_type == "VRAM" else mem_type)
