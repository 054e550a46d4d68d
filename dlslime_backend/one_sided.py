"""One-sided transfers: read and write the memory of another process without its participation.

    region = dlslime_backend.register(cache, name="kv")         # both ends: a tensor
    blob = region.export()                                      # to the peer, by any means

    remote = dlslime_backend.import_region(blob)                # at the peer
    peer = dlslime_backend.peer(0)                              # rank 0 of a process group, or
    peer = dlslime_backend.Endpoint(); peer.connect(address)    # ... two processes without one
    peer.read(region, remote, [(0, 4096, 1024)]).wait()
    await peer.write(region, remote, (local_pages, remote_pages, 16384))

Transfers use the connection of the pair: shared memory within a host, RDMA between hosts, and TCP
for pairs with neither. If the memory can't be reached directly, the bytes are sent as messages. If
a connection is lost, its transfers are repeated over the next connection.

The memory may be on a GPU. A transfer with local GPU memory begins after the work queued before on
the current stream of that GPU; the program has to order the work of the peer's streams. Between two
GPUs of a host the bytes are copied through CUDA IPC.
"""

from __future__ import annotations

import operator
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from dlslime_backend._backend import make_pair_group
from dlslime_backend._load import extension
from dlslime_backend.memory import Pieces, Region, RemoteRegion, as_bytes, core_part
from dlslime_backend.transfer import Transfer

_IMMEDIATE = 1  # tag of the notes of immediates; compat/nixl uses tag 2
_LARGEST_IMMEDIATE = 2**32 - 1


class Prepared:
    """A transfer whose pieces have been checked; made by `Peer.prepare_read` or `prepare_write`."""

    __slots__ = ("_start",)

    def __init__(self, core: Any) -> None:
        self._start = core.start

    def start(self) -> Transfer:
        """Begin the transfer; several transfers of one `Prepared` may be in progress at a time.

        Returns:
            The handle of the new transfer. The state of the regions is checked once more: if a
            region was deregistered meanwhile, the transfer fails with a ValueError in `wait`.
        """
        return Transfer(self._start())


class Peer:
    """The other process of a pair; made by `peer` or as an `Endpoint`. Any thread may use a peer.

    The methods that begin an operation return at once, and raise torch.distributed.DistBackendError
    in a forked child or if the group is suspended.
    """

    def __init__(self, link: Any) -> None:
        self._link = link
        # Immediates that came for an `await` that had been cancelled; the next `expect_imm` returns
        # them.
        self._untaken: deque[Any] = deque()

    def read(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Transfer:
        """Begin to copy from the peer's memory to local memory.

        Args:
            local: region of this process, the destination.
            remote: region of the peer, the source.
            pieces: ranges to copy, see `Pieces`. Neighbours are merged, empty pieces are left out,
                and the order has no meaning. Arrays are read without the GIL.

        Returns:
            The handle of the transfer.

        Raises:
            ValueError: a piece is outside of its region; two pieces overlap where bytes are
                written, or overlap the source within one memory; the local region is read-only; or
                the arrays have unequal lengths or a wrong dtype, shape or device. Nothing is copied
                then.
            TypeError: an argument has another type.
        """
        return Transfer(self._link.transfer_one(False, *core_part(local, remote, pieces)))

    def write(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Transfer:
        """Begin to copy from local memory to the peer's memory; see `read`.

        Raises:
            ValueError: as `read`, or `remote` was registered with `access="read"`.
        """
        return Transfer(self._link.transfer_one(True, *core_part(local, remote, pieces)))

    def prepare_read(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Prepared:
        """Check the arguments of a `read` once, for many cheaper starts; raises as `read`."""
        return Prepared(self._link.prepare(False, *core_part(local, remote, pieces)))

    def prepare_write(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Prepared:
        """Check the arguments of a `write` once, for many cheaper starts; raises as `write`."""
        return Prepared(self._link.prepare(True, *core_part(local, remote, pieces)))

    def read_many(self, parts: Iterable[tuple[Region, RemoteRegion, Pieces]]) -> Transfer:
        """Begin one transfer that reads between several pairs of regions; see `read`.

        The transfer is done when the pieces of all parts have been copied.

        Args:
            parts: (local, remote, pieces) of each pair of regions.

        Raises:
            ValueError: as `read`; or the local regions are on several GPUs.
        """
        return Transfer(self._link.transfer(False, [core_part(*part) for part in parts]))

    def write_many(
        self, parts: Iterable[tuple[Region, RemoteRegion, Pieces]], imm: int | None = None
    ) -> Transfer:
        """Begin one transfer that writes between several pairs of regions.

        Args:
            parts: (local, remote, pieces) of each pair of regions.
            imm: number for the peer, see `write_with_imm`; None for no number.

        Raises:
            ValueError: as `write_with_imm`; or the local regions are on several GPUs.
        """
        if imm is None:
            return Transfer(self._link.transfer(True, [core_part(*part) for part in parts]))
        if not 0 <= operator.index(imm) <= _LARGEST_IMMEDIATE:
            raise ValueError(f"dlslime: the immediate {imm} is not in 0 .. {_LARGEST_IMMEDIATE}")
        note = struct.pack("<I", imm)
        cores = [core_part(*part) for part in parts]
        return Transfer(self._link.transfer(True, cores, _IMMEDIATE, note))

    def write_with_imm(
        self, local: Region, remote: RemoteRegion, pieces: Pieces = None, *, imm: int
    ) -> Transfer:
        """Begin a write; the peer's `expect_imm` gets `imm` once all bytes are in its memory.

        Raises:
            ValueError: `imm` is not in 0 .. 2^32-1; or as `write`.
        """
        return self.write_many([(local, remote, pieces)], imm)

    def expect_imm(self) -> Transfer:
        """Begin to receive the immediate of one `write_with_imm` of the peer, past or future.

        Returns:
            A handle, whose `wait` (or `await`) returns the number. Every call gets one number, in
            the order in which the peer's writes end.
        """
        try:
            core = self._untaken.popleft()
        except IndexError:
            core = self._link.receive_note(_IMMEDIATE, 4)
        return Transfer(core, _immediate_of, self._give_back)

    def _give_back(self, core: Any) -> None:
        if core.ended and len(core.content) == 4:  # an immediate came
            self._untaken.append(core)

    def send(self, tensor: torch.Tensor, tag: int = 0) -> Transfer:
        """Begin to send a tensor; the tensor must not change before the handle is done.

        Args:
            tensor: contiguous, of any shape and dtype, on a CPU or a CUDA GPU.
            tag: 0 .. 2^31-1; matches the tag of the receive.

        Raises:
            ValueError: the tag is out of range, or the tensor is not contiguous or on another
                device.
            TypeError: `tensor` is not a tensor.
        """
        return Transfer(self._link.send(tensor, _checked_tag(tag)))

    def recv(self, tensor: torch.Tensor, tag: int = 0) -> Transfer:
        """Begin to receive the next message of the peer with a tag; raises as `send`.

        Args:
            tensor: contiguous, on a CPU or a CUDA GPU; receives the bytes. The message may be
                shorter; the operation fails if the message is longer.
            tag: 0 .. 2^31-1.
        """
        return Transfer(self._link.recv(tensor, _checked_tag(tag)))

    def route(self) -> str:
        """Connect if the pair is not connected; return "shm", "rdma", "tcp", "gloo" or "self".

        Blocks up to the time-out of the group or endpoint.

        Raises:
            torch.distributed.DistBackendError: the peer can't be reached.
            TimeoutError: the peer was not reached in time.
        """
        return str(self._link.route())


class Endpoint(Peer):
    """One end of a pair of processes that need no process group.

    Each process makes an endpoint, the two exchange `address` by any means (a file, HTTP, a store),
    and call `connect` in any order. For reads and writes only the initiator needs `connect`.

    Args:
        name: for error messages.
        timeout: of operations and of reaching the peer, in seconds, 0.001 to 100 years.
        route: "auto", "shm", "rdma", "tcp" or "gloo"; empty takes DLSLIME_ROUTE. "auto" takes the
            best of shm, rdma and tcp for the pair. A fallback to TCP logs a warning once per pair;
            DLSLIME_FALLBACK=forbid makes the fallback an error.

    Raises:
        ValueError: the time-out is out of range, or the route is unknown.
    """

    def __init__(self, name: str = "endpoint", timeout: float = 300.0, route: str = "") -> None:
        super().__init__(extension().EndpointLink(name, timeout, route, make_pair_group))

    @property
    def address(self) -> bytes:
        """The bytes for the other end's `connect`; constant for the life of the endpoint."""
        address: bytes = self._link.address
        return address

    def connect(self, address: bytes) -> None:
        """Set the peer; nothing is sent before the first operation.

        Args:
            address: of the other endpoint, or of a `Hub`.

        Raises:
            ValueError: the bytes are no address, or the address of this endpoint; the endpoint has
                another peer already, or was closed.
            TypeError: `address` is not bytes.
        """
        self._link.connect(as_bytes(address, "the address of an endpoint"))

    def close(self) -> None:
        """Leave the pair; pending operations with the peer fail. Does nothing the second time."""
        self._link.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Guest(Peer):
    """A peer that has connected to a `Hub`; made by `Hub.accept`.

    The pair exists until either end leaves; this end leaves by `close`. A guest that is dropped
    without `close`, or never accepted, stays until the guest leaves or the hub is closed.
    """

    def close(self) -> None:
        """Leave the pair; pending operations with the peer fail. Does nothing the second time."""
        self._link.close()


class Hub:
    """An address to which any number of endpoints connect, unknown to the process beforehand.

    Args: as of `Endpoint`.
    """

    def __init__(self, name: str = "hub", timeout: float = 300.0, route: str = "") -> None:
        self._core = extension().HubLink(name, timeout, route, make_pair_group)

    @property
    def address(self) -> bytes:
        """The bytes for the endpoints' `connect`; constant for the life of the hub."""
        address: bytes = self._core.address
        return address

    def accept(self) -> list[Guest]:
        """Return the guests that have appeared since the last call.

        A guest appears at its first operation. The call does not block, and makes progress. Before
        it is accepted, a guest can read and write regions whose handles it has, and its messages
        wait. A guest that has left is returned as well if it has left messages unread; the hub
        keeps such messages up to half of `DLSLIME_UNEXPECTED_LIMIT`, of all guests together, and
        refuses new guests beyond that.
        """
        return [Guest(link) for link in self._core.accept()]

    def close(self) -> None:
        """Accept no more guests; held `Guest` objects remain. Does nothing the second time."""
        self._core.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peer(rank: int, group: dist.ProcessGroup | None = None) -> Peer:
    """Return a rank of a process group as a peer for one-sided transfers.

    Args:
        rank: in the group; the rank of this process is possible.
        group: a process group with the dlslime backend; None is the default group.

    Raises:
        ValueError: there is no such rank, no default group, or the group does not use dlslime.
    """
    from dlslime_backend.report import backend_of

    backend = backend_of(group)
    if not 0 <= operator.index(rank) < backend.size():
        raise ValueError(
            f"dlslime: the group has no rank {rank}: it has ranks 0 to {backend.size() - 1}"
        )
    return Peer(extension().PeerLink(backend, operator.index(rank)))


def _immediate_of(core: Any) -> int:
    content = bytes(core.content)
    # The peer chooses the length of a note, up to the capacity of the receive.
    if len(content) != 4:
        raise ValueError(f"dlslime: the peer's immediate is of {len(content)} bytes, not of 4")
    return int.from_bytes(content, "little")


def _checked_tag(tag: int) -> int:
    if not 0 <= operator.index(tag) < 2**31:
        raise ValueError(f"dlslime: tag {tag} is not in 0 .. 2^31-1")
    return tag
