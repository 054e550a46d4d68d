"""One-sided transfers: read and write the memory of another process, without its help.

    region = dlslime_backend.register(cache, name="kv")         # both ends: a tensor
    blob = region.export()                                      # to the peer, by any means

    remote = dlslime_backend.import_region(blob)                # at the peer
    peer = dlslime_backend.peer(0)                              # rank 0 of a process group, or
    peer = dlslime_backend.Endpoint(); peer.connect(address)    # ... two processes without one
    peer.read(region, remote, [(0, 4096, 1024)]).wait()
    await peer.write(region, remote, (local_pages, remote_pages, 16384))

Transfers go by the pair's connection: shared memory within a host, RDMA between hosts, and TCP
where a pair has neither. Where memory can't be reached directly they go as messages of the pair.
They are repeated by another connection when theirs is lost.

Memory may be a GPU's: then a transfer begins when the current stream has come to it, at this end;
what the peer's streams do with its memory is for the program to order. Between two GPUs of one
host the bytes go by CUDA IPC.
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

_IMMEDIATE = 1  # note tags
_LARGEST_IMMEDIATE = 2**32 - 1


class Prepared:
    """A transfer of pieces that have been checked; made by `Peer.prepare_read` and its like."""

    __slots__ = ("_start",)

    def __init__(self, core: Any) -> None:
        self._start = core.start

    def start(self) -> Transfer:
        """Begin it, once more; several may be under way at a time.

        The regions are looked at again: a transfer with one that was deregistered meanwhile fails.
        """
        return Transfer(self._start())


class Peer:
    """The other process of a pair; made by `peer`, or as an `Endpoint`. Any thread may use it."""

    def __init__(self, link: Any) -> None:
        self._link = link
        # Immediates that came while the `await` for them was cancelled.
        self._untaken: deque[Any] = deque()

    def read(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Transfer:
        """Begin to copy from the peer's memory into ours.

        Args:
            local: where to.
            remote: where from; of this peer.
            pieces: which parts, see `Pieces`. Neighbours are merged, empty ones left out; their
                order means nothing. Arrays are read without the GIL.

        Raises:
            ValueError: a piece is outside of its region; two overlap where they are written; or
                arrays are of other kinds or lengths. Nothing is copied then.
        """
        return Transfer(self._link.transfer_one(False, *core_part(local, remote, pieces)))

    def write(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Transfer:
        """Begin to copy from our memory into the peer's; see `read`."""
        return Transfer(self._link.transfer_one(True, *core_part(local, remote, pieces)))

    def prepare_read(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Prepared:
        """Check a `read` that is to be started many times, which then costs less."""
        return Prepared(self._link.prepare(False, *core_part(local, remote, pieces)))

    def prepare_write(self, local: Region, remote: RemoteRegion, pieces: Pieces = None) -> Prepared:
        """Check a `write` that is to be started many times, which then costs less."""
        return Prepared(self._link.prepare(True, *core_part(local, remote, pieces)))

    def read_many(self, parts: Iterable[tuple[Region, RemoteRegion, Pieces]]) -> Transfer:
        """Read between several regions as one transfer, which is over when all is; see `read`."""
        return Transfer(self._link.transfer(False, [core_part(*part) for part in parts]))

    def write_many(
        self, parts: Iterable[tuple[Region, RemoteRegion, Pieces]], imm: int | None = None
    ) -> Transfer:
        """Write between several regions as one transfer; see `read_many` and `write_with_imm`."""
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
        """Write, and then tell the peer's `expect_imm`, which sees all bytes where they belong.

        Raises:
            ValueError: `imm` is not in 0 .. 2^32-1; or as `read`.
        """
        return self.write_many([(local, remote, pieces)], imm)

    def expect_imm(self) -> Transfer:
        """Wait for the peer's next `write_with_imm`, also one that has come before: its number.

        Each answers one, in the order of the peer's writes that are over.
        """
        try:
            core = self._untaken.popleft()
        except IndexError:
            core = self._link.receive_note(_IMMEDIATE, 4)
        return Transfer(core, _immediate_of, self._give_back)

    def _give_back(self, core: Any) -> None:
        if core.ended and len(core.content) == 4:  # it has come, and well
            self._untaken.append(core)

    def send(self, tensor: torch.Tensor, tag: int = 0) -> Transfer:
        """Begin to send a contiguous CPU or CUDA tensor; it must not change before this is done."""
        return Transfer(self._link.send(tensor, _checked_tag(tag)))

    def recv(self, tensor: torch.Tensor, tag: int = 0) -> Transfer:
        """Begin to receive what the peer sends next with this tag; it may be shorter."""
        return Transfer(self._link.recv(tensor, _checked_tag(tag)))

    def route(self) -> str:
        """Connect if need be, and tell by what: "shm", "rdma", "tcp", "gloo" or "self"."""
        return str(self._link.route())


class Endpoint(Peer):
    """One end of a pair of processes that need no process group.

    Both make one, exchange `address` by any means (a file, HTTP, a store), and call `connect` in
    any order. Reads and writes need only this end's `connect`.

    Args:
        name: for the texts of errors.
        timeout: of operations, and of reaching the peer, in seconds.
        route: "auto", "shm", "rdma", "tcp" or "gloo"; empty takes DLSLIME_ROUTE. "auto" takes the
            best of the first three that the pair has, and warns once where that is TCP:
            DLSLIME_FALLBACK=forbid makes it an error.
    """

    def __init__(self, name: str = "endpoint", timeout: float = 300.0, route: str = "") -> None:
        super().__init__(extension().EndpointLink(name, timeout, route, make_pair_group))

    @property
    def address(self) -> bytes:
        """What the other end's `connect` takes; the same for the endpoint's life."""
        address: bytes = self._link.address
        return address

    def connect(self, address: bytes) -> None:
        """Say who the other end is; nothing is sent before the first operation.

        Raises:
            ValueError: that is no address, this endpoint's own, or another one than before.
        """
        self._link.connect(as_bytes(address, "the address of an endpoint"))

    def close(self) -> None:
        """Leave the pair; what goes on with it ends with an error. Does nothing the second time."""
        self._link.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Guest(Peer):
    """A peer that has connected to a `Hub`; made by `Hub.accept`.

    It stays connected until it leaves, or `close`. One that is dropped without, or is never
    accepted, stays as well, until its hub is closed.
    """

    def close(self) -> None:
        """Leave the pair; what goes on with it ends with an error. Does nothing the second time."""
        self._link.close()


class Hub:
    """Where any number of endpoints connect, that this process need not know before.

    Args: as of `Endpoint`.
    """

    def __init__(self, name: str = "hub", timeout: float = 300.0, route: str = "") -> None:
        self._core = extension().HubLink(name, timeout, route, make_pair_group)

    @property
    def address(self) -> bytes:
        """What the `connect` of endpoints takes; the same for the hub's life."""
        address: bytes = self._core.address
        return address

    def accept(self) -> list[Guest]:
        """Return the peers that have come since the last call, each with its first operation.

        Does not wait. A peer that is not accepted can read and write what it has the handles of,
        and what it sends waits. One that has left is returned, too, while there is something of it
        to receive: see `DLSLIME_UNEXPECTED_LIMIT`, half of which may be left so by all of them.
        """
        return [Guest(link) for link in self._core.accept()]

    def close(self) -> None:
        """Let nobody come any more; guests that are held stay. Does nothing the second time."""
        self._core.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peer(rank: int, group: dist.ProcessGroup | None = None) -> Peer:
    """Return a rank of a process group that uses dlslime, for one-sided transfers with it.

    Args:
        rank: in the group; one's own is possible.
        group: None is the default group.

    Raises:
        ValueError: there is no such group, or no such rank in it.
    """
    from dlslime_backend.report import backend_of

    backend = backend_of(group)
    if not 0 <= operator.index(rank) < backend.size():
        raise ValueError(f"dlslime: the group has no rank {rank}, but {backend.size()} of them")
    return Peer(extension().PeerLink(backend, operator.index(rank)))


def _immediate_of(core: Any) -> int:
    content = bytes(core.content)
    if len(content) != 4:  # the peer chooses how long a note is, up to what there is room for
        raise ValueError(f"dlslime: the peer's immediate is of {len(content)} bytes, not of 4")
    return int.from_bytes(content, "little")


def _checked_tag(tag: int) -> int:
    if not 0 <= operator.index(tag) < 2**31:
        raise ValueError(f"dlslime: tag {tag} is not in 0 .. 2^31-1")
    return tag
