"""The agent, the central class of `dlslime_backend.compat.nixl`."""

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
_DEREGISTER_TIME = 1.0  # seconds, when an agent is dropped


class nixl_agent_config:  # noqa: N801 (NIXL's name, as all in the module)
    """Configuration of an agent, as in NIXL; `backends` and `capture_telemetry` have an effect.

    Raises:
        TypeError: `sync_mode` is no nixl_thread_sync_t.
    """

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
    """An agent: registered memory, known remote agents, transfers. Any thread may use an agent.

    Raises:
        nixlNotSupportedError: the configuration asks for a listener thread.
    """

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
        with contextlib.suppress(Exception):  # `__init__` may have failed
            for remote in self._remotes.values():
                remote.close()
            self._mailbox.close()
            for region in self._regions.all():
                with contextlib.suppress(Exception):
                    region.deregister(_DEREGISTER_TIME)

    # Memory of the agent.

    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> b.nixlRegDList:
        """Make memory readable and writable for agents that get the metadata of this agent.

        Args:
            reg_list: a contiguous tensor or a list of tensors, on CPUs or GPUs; [(address, bytes,
                device, text)]; or uint64 [N, 3]. The memory must stay until `deregister_memory`.
            mem_type: "DRAM" (or "cpu") or "VRAM" (or "cuda"); required without tensors.
            backends: names given to `create_backend`.

        Returns:
            The list for `deregister_memory`.

        Raises:
            nixlNotSupportedError: another kind of memory.
            nixlInvalidParamError: the memory is not mapped or of another kind, or `reg_list` is
                malformed.
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
        """End the access of other agents to memory; after the call, no agent touches the memory.

        Raises:
            nixlNotFoundError: the memory was not registered.
            nixlNotAllowedError: transfers of this or another agent use the memory.
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
        """Raise nixlNotSupportedError, as NIXL's UCX backend does."""
        raise b.nixlNotSupportedError("dlslime has nothing to tell of memory")

    # Remote agents.

    def get_agent_metadata(self) -> bytes:
        """Return metadata for `add_remote_agent`; every holder may read and write all memory."""
        return self._metadata(self._regions.all(), address=True, whole=True)

    def get_partial_agent_metadata(
        self, descs: b.nixlRegDList, inc_conn_info: bool = False, backends: Sequence[str] = ()
    ) -> bytes:
        """Return metadata of some memory; the address is included if `inc_conn_info` is true."""
        self._check(backends)
        regions = self._regions.of((address, nbytes) for address, nbytes, *_ in descs)
        return self._metadata(regions, address=inc_conn_info, whole=False)

    def _metadata(self, regions: Sequence[memory.Region], address: bool, whole: bool) -> bytes:
        exported = [region.export() for region in regions]
        where = self._mailbox.address if address else b""
        return Metadata(self.name, where, exported, whole).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Add another agent, or further memory of a known agent.

        Returns:
            The agent's name, as bytes.

        Raises:
            nixlMismatchError: no metadata, or metadata of another library.
            nixlInvalidParamError: metadata of this agent.
            nixlNotFoundError: partial metadata of an unknown agent.
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
        except ValueError:  # a refused agent must not replace a known one
            fresh.close()
            raise
        if known is not None:
            known.close()  # it has started again
        self._remotes[found.name] = fresh

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Remove an agent; transfers with the agent fail. Does nothing if the agent is unknown."""
        remote = self._remotes.pop(text(agent), None)
        if remote is not None:
            remote.close()

    def check_remote_metadata(self, agent: str | bytes, descs: Any = None) -> bool:
        """Return whether an agent is known and has registered the memory of `descs`."""
        remote = self._remotes.get(text(agent))
        if remote is None or descs is None:
            return remote is not None
        try:
            remote.index.locate(descs.table, remote.name)
        except b.nixlNotFoundError:
            return False
        return True

    def make_connection(self, remote_agent: str | bytes, backends: Sequence[str] = ()) -> None:
        """Connect to an agent now, instead of at the first transfer.

        Raises:
            nixlNotFoundError: the agent is unknown.
            nixlRemoteDisconnectError: the agent can't be reached.
        """
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
        """Look up descriptors; transfers select some of the descriptors by index.

        Args:
            agent_name: owner of the memory. "NIXL_INIT_AGENT" or "" is the local side of this
                agent; this agent's own name is the remote side of a transfer within the agent.
            xfer_list: as of `get_xfer_descs`; or uint64 [N, 5], rows of (address, bytes, device,
                stride, count) for `count` blocks each.
            mem_type: "DRAM" or "VRAM"; required without tensors.
            backends: names given to `create_backend`.

        Raises:
            nixlNotFoundError: the agent is unknown, or has not registered the memory.
            nixlNotSupportedError: another kind of memory.
            ValueError: strided descriptors without `mem_type`.
            TypeError: `xfer_list` is malformed.
        """
        self._check(backends)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("strided descriptors need a mem_type")
            xfer_list = unrolled(xfer_list)
        descs = self.get_xfer_descs(xfer_list, mem_type)
        if descs is None:
            raise TypeError(
                f"an object of type {type(xfer_list).__name__} is no list of descriptors"
            )
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
        """Make a transfer between prepared descriptors; `transfer` begins the transfer.

        Args:
            operation: "READ" from the remote side, or "WRITE" to the remote side.
            local_xfer_side: from `prep_xfer_dlist`.
            local_indices: integers [N].
            remote_xfer_side: from `prep_xfer_dlist`.
            remote_indices: integers [N]; each is paired with the local index at the same place.
            notif_msg: sent to the other agent once all bytes are in place; empty for no message.
            backends: names given to `create_backend`.
            skip_desc_merge: ignored.

        Raises:
            nixlInvalidParamError: numbers or lengths of descriptors differ, an index is out of
                range, or the sides are not one local and one remote side.
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
        """Begin a transfer.

        Args:
            handle: from `make_prepped_xfer` or `initialize_xfer`.
            notif_msg: replaces the notification of the handle, unless empty.

        Returns:
            "DONE", or "PROC" while the transfer is in progress.

        Raises:
            nixlRepostActiveError: the transfer is already in progress.
            nixlNotFoundError: the other agent was removed.
            nixlInvalidParamError: descriptors overlap where bytes are written.
        """
        remote = handle.remote
        if self._remotes.get(remote.name) is not remote:
            raise b.nixlNotFoundError(f"the agent {remote.name} was removed, or has started again")
        handle.post(note(notif_msg))
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Return "PROC" while a transfer is in progress, "DONE" when the transfer has ended.

        Raises:
            nixlNotPostedError: the transfer was never posted.
            nixlRemoteDisconnectError: the other agent has ended or can't be reached.
            nixlCancelledError, nixlInvalidParamError, nixlBackendError: the transfer has failed.
        """
        return "DONE" if handle.done() else "PROC"

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Cancel a transfer if it is in progress; see `nixl_xfer_handle.release`."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Do nothing: prepared descriptors hold no resources."""
        handle.release()

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> b.nixlXferTelemetry:
        """Return times (in microseconds) and sizes of a transfer that has ended.

        Raises:
            nixlNoTelemetryError: the agent was made without `capture_telemetry`.
            nixlNotPostedError: the transfer is still in progress.
        """
        if not self._telemetry:
            raise b.nixlNoTelemetryError("the agent was made without capture_telemetry")
        return handle.telemetry()

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """Return the first name given to `create_backend`."""
        return next(iter(self.backends))

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Return (0, 0, "UNKNOWN"): costs are not estimated."""
        return 0, 0, "UNKNOWN"
