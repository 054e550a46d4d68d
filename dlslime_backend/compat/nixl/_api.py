"""The agent: see `dlslime_backend.compat.nixl`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dlslime_backend import memory
from dlslime_backend._untrusted import printable
from dlslime_backend.compat.nixl import _backends
from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl._bindings import DEFAULT_COMM_PORT as DEFAULT_COMM_PORT
from dlslime_backend.compat.nixl._bindings import nixl_thread_sync_t as nixl_thread_sync_t
from dlslime_backend.compat.nixl._descs import Descriptors, require_kind, require_memory, unrolled
from dlslime_backend.compat.nixl._handles import (
    nixl_prepped_dlist_handle as nixl_prepped_dlist_handle,
)
from dlslime_backend.compat.nixl._handles import nixl_xfer_handle as nixl_xfer_handle
from dlslime_backend.compat.nixl._handles import parts_of
from dlslime_backend.compat.nixl._notes import NO_EXCHANGE, Notes, note, text
from dlslime_backend.compat.nixl._regions import Regions
from dlslime_backend.compat.nixl._remote import Mailbox, Metadata, Remote

nixl_backend_handle = int
_OPERATIONS = {"READ": False, "WRITE": True}
_DEREGISTER_TIME = 1.0  # seconds, for an agent that is dropped


class nixl_agent_config:  # noqa: N801  (NIXL's name, as all in here)
    """How an agent is to be; see NIXL. Only `backends` and `capture_telemetry` matter here."""

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: Sequence[str] = ("UCX",),
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        self.backends = list(backends)
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode is a nixl_thread_sync_t, not {type(sync_mode).__name__}")
        self.sync_mode = sync_mode


class nixl_agent(Notes, Descriptors):  # noqa: N801
    """One of a program's agents, with its memory, and what it knows of others. Any thread."""

    def __init__(
        self,
        agent_name: str,
        nixl_conf: nixl_agent_config | None = None,
        instantiate_all: bool = False,
    ) -> None:
        config = nixl_conf or nixl_agent_config()
        if config.enable_listen:
            raise b.nixlNotSupportedError(NO_EXCHANGE)
        every = instantiate_all and not nixl_conf
        super().__init__(_backends.NAMES if every else config.backends)
        self.name = agent_name
        self._telemetry = config.capture_telemetry
        self._regions: Regions[memory.Region] = Regions()
        self._remotes: dict[str, Remote] = {}
        self._mailbox = Mailbox(agent_name)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # it may never have been whole
            for remote in self._remotes.values():
                remote.close()
            self._mailbox.close()
            for region in self._regions.all():
                with contextlib.suppress(Exception):
                    region.deregister(_DEREGISTER_TIME)

    # Memory of this agent.

    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> b.nixlRegDList:
        """Make memory readable and writable for agents that get this one's metadata.

        Args:
            reg_list: contiguous tensor or list of them, on CPUs or GPUs; [(address, bytes, device,
                text)]; or uint64 [N, 3]. Addresses must stay until `deregister_memory`.
            mem_type: "DRAM" (or "cpu") or "VRAM" (or "cuda"); needed unless tensors are given.
            backends: names given to `create_backend`.

        Raises:
            nixlNotSupportedError: other kinds of memory.
            nixlInvalidParamError: the address can't be, or is of the other kind of memory, or
                nothing of the above is given.
        """
        self._check(backends)
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise b.nixlInvalidParamError(f"memory is not described by {type(reg_list).__name__}")
        require_memory(descs)
        made = []
        try:
            for address, nbytes, *_ in descs:
                made.append(memory.register((address, nbytes), f"{self.name} {address:#x}"))
                require_kind(made[-1], descs)
        except ValueError as error:
            for region in made:
                region.deregister()
            raise b.nixlInvalidParamError(str(error)) from error
        self._regions.add((id(region), region) for region in made)
        return descs

    def deregister_memory(self, dereg_list: b.nixlRegDList, backends: Sequence[str] = ()) -> None:
        """Take memory back: when this returns, no other agent touches it.

        Raises:
            nixlNotFoundError: it was not registered.
            nixlNotAllowedError: transfers with it go on, here or at another agent.
        """
        self._check(backends)
        for address, nbytes, *_ in dereg_list:
            found = self._regions.take((address, nbytes))
            if found is None:
                raise b.nixlNotFoundError(f"{nbytes} bytes at {address:#x} are not registered")
            try:
                found[1].deregister()
            except (ValueError, TimeoutError) as error:
                self._regions.add([found])
                raise b.nixlNotAllowedError(str(error)) from error

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> Any:
        """Is not supported, as by NIXL's UCX backend."""
        raise b.nixlNotSupportedError("dlslime has nothing to tell of memory")

    # Other agents.

    def get_agent_metadata(self) -> bytes:
        """Return what an agent's `add_remote_agent` takes, which may read and write all memory."""
        return self._metadata(self._regions.all(), address=True, whole=True)

    def get_partial_agent_metadata(
        self, descs: b.nixlRegDList, inc_conn_info: bool = False, backends: Sequence[str] = ()
    ) -> bytes:
        """Return metadata of some memory only, and without the address unless `inc_conn_info`."""
        self._check(backends)
        regions = self._regions.of((address, nbytes) for address, nbytes, *_ in descs)
        return self._metadata(regions, address=inc_conn_info, whole=False)

    def _metadata(self, regions: Sequence[memory.Region], address: bool, whole: bool) -> bytes:
        exported = [region.export() for region in regions]
        where = self._mailbox.address if address else b""
        return Metadata(self.name, where, exported, whole).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Get to know another agent, or more of its memory.

        Returns:
            Its name, as bytes.

        Raises:
            nixlMismatchError: no metadata, or of another library.
            nixlInvalidParamError: this agent's own.
            nixlNotFoundError: partial metadata of an agent that is not known.
        """
        found = Metadata.decode(metadata)
        if found.name == self.name:
            raise b.nixlInvalidParamError(f"{self.name} is this agent's own name")
        known = self._remotes.get(found.name)
        try:
            if known is not None and found.address in (b"", known.address):
                known.add(found.regions, found.whole)
            else:
                self._add_fresh(found, known)
        except ValueError as error:
            raise b.nixlMismatchError(str(error)) from error
        return found.name.encode()

    def _add_fresh(self, found: Metadata, known: Remote | None) -> None:
        if not found.address:
            raise b.nixlNotFoundError(f"the address of {printable(found.name)} is not known")
        fresh = Remote(self.name, found.name, found.address)
        try:
            fresh.add(found.regions, found.whole)
        except ValueError:  # what is refused must not take the place of what is known
            fresh.close()
            raise
        if known is not None:
            known.close()  # it has started again
        self._remotes[found.name] = fresh

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Forget an agent; transfers with it fail. Does nothing if it is not known."""
        remote = self._remotes.pop(text(agent), None)
        if remote is not None:
            remote.close()

    def check_remote_metadata(self, agent: str | bytes, descs: Any = None) -> bool:
        """Tell whether an agent is known, and this memory of it."""
        remote = self._remotes.get(text(agent))
        if remote is None or descs is None:
            return remote is not None
        try:
            remote.index.locate(descs.table, remote.name)
        except b.nixlNotFoundError:
            return False
        return True

    def make_connection(self, remote_agent: str | bytes, backends: Sequence[str] = ()) -> None:
        """Reach an agent now, and not with the first transfer."""
        self._check(backends)
        try:
            self._remote(remote_agent).connect()
        except Exception as error:
            if isinstance(error, b.nixlNotFoundError):
                raise
            raise b.nixlRemoteDisconnectError(str(error)) from error

    def _remote(self, agent: str | bytes) -> Remote:
        name = text(agent)
        if name == self.name and name not in self._remotes:
            self._remotes[name] = Remote(name, name, self._mailbox.address)
        if name not in self._remotes:
            raise b.nixlNotFoundError(f"{self.name} has no metadata of an agent {name!r}")
        return self._remotes[name]

    # Transfers.

    def prep_xfer_dlist(
        self,
        agent_name: str | bytes,
        xfer_list: Any,
        mem_type: str | None = None,
        backends: Sequence[str] = (),
    ) -> nixl_prepped_dlist_handle:
        """Look up descriptors, of which transfers take some by their indices.

        Args:
            agent_name: whose memory it is; "NIXL_INIT_AGENT" or "" is this agent's local side, its
                own name the remote side of a transfer within itself.
            xfer_list: as of `get_xfer_descs`; or uint64 [N, 5] of (address, bytes, device, stride,
                count), for `count` blocks each.
            mem_type: "DRAM" or "VRAM".
            backends: names given to `create_backend`.

        Raises:
            nixlNotFoundError: the agent is not known, or has not registered this memory.
            TypeError: these are no descriptors.
        """
        self._check(backends)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("strided descriptors need a mem_type")
            xfer_list = unrolled(xfer_list)
        descs = self.get_xfer_descs(xfer_list, mem_type)
        if descs is None:
            raise TypeError("no list of descriptors")
        require_memory(descs)
        name = text(agent_name)
        if name in ("", "NIXL_INIT_AGENT"):
            return nixl_prepped_dlist_handle(None, self._regions.index(), descs.table, self.name)
        remote = self._remote(name)
        if name == self.name:
            remote.add([region.export() for region in self._regions.all()], whole=True)
        return nixl_prepped_dlist_handle(remote, remote.index, descs.table, name)

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,
        notif_msg: bytes | str = b"",
        backends: Sequence[str] = (),
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """Make a transfer between prepared descriptors; `transfer` begins it.

        Args:
            operation: "READ" from the remote side, or "WRITE" to it.
            local_xfer_side: of `prep_xfer_dlist`.
            local_indices: integers [N].
            remote_xfer_side: of `prep_xfer_dlist`.
            remote_indices: integers [N], each the other side of the local one at its place.
            notif_msg: told to the other agent when all bytes are there; empty for none.
            backends: names given to `create_backend`.
            skip_desc_merge: without effect.

        Raises:
            nixlInvalidParamError: other numbers or lengths, indices beyond the list, or sides that
                are not a local and a remote one.
        """
        self._check(backends)
        write = _OPERATIONS[operation]
        remote = remote_xfer_side.remote
        if remote is None or local_xfer_side.remote is not None:
            raise b.nixlInvalidParamError("a transfer is between a local and a remote side")
        parts = parts_of(local_xfer_side, local_indices, remote_xfer_side, remote_indices)
        return nixl_xfer_handle(remote, write, parts, note(notif_msg))

    def initialize_xfer(
        self,
        operation: str,
        local_descs: b.nixlXferDList,
        remote_descs: b.nixlXferDList,
        remote_agent: str | bytes,
        notif_msg: bytes | str = b"",
        backends: Sequence[str] = (),
    ) -> nixl_xfer_handle:
        """Make a transfer between two lists of descriptors; see `make_prepped_xfer`."""
        remote = self.prep_xfer_dlist(remote_agent, remote_descs, None, backends)
        local = self.prep_xfer_dlist("", local_descs, None, backends)
        here, there = np.arange(len(local_descs)), np.arange(len(remote_descs))
        return self.make_prepped_xfer(operation, local, here, remote, there, notif_msg, backends)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b"") -> str:
        """Begin a transfer, with another notification if one is given.

        Returns:
            "DONE", or "PROC" while it goes on.

        Raises:
            nixlRepostActiveError: it is under way already.
            nixlNotFoundError: the other agent was removed.
            nixlInvalidParamError: descriptors overlap where they are written.
        """
        remote = handle.remote
        if self._remotes.get(remote.name) is not remote:
            raise b.nixlNotFoundError(f"the agent {remote.name} was removed, or has started again")
        handle.post(note(notif_msg))
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Tell whether a transfer goes on ("PROC") or is over ("DONE").

        Raises:
            nixlNotPostedError: it was never begun.
            nixlRemoteDisconnectError: the other agent has ended, or can't be reached.
            nixlCancelledError, nixlInvalidParamError, nixlBackendError: it has failed.
        """
        return "DONE" if handle.done() else "PROC"

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Take a transfer back, if it goes on; see `nixl_xfer_handle.release`."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Do nothing: prepared descriptors hold nothing."""
        handle.release()

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> b.nixlXferTelemetry:
        """Return the times (microseconds) and the sizes of a transfer that is over.

        Raises:
            nixlNoTelemetryError: the agent was made without `capture_telemetry`.
        """
        if not self._telemetry:
            raise b.nixlNoTelemetryError("the agent was made without capture_telemetry")
        return handle.telemetry()

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """Return the first name that was given to dlslime."""
        return next(iter(self.backends))

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Return that nothing is known."""
        return 0, 0, "UNKNOWN"
