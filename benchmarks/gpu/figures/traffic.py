"""Traffic of the figures' two ranks: messages, transfers, and copies of equal shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import dlslime_backend
import gpus
from measuring.harness import PayloadError, Rank

MIB = 1 << 20
PAGE = 16 << 10
ROTATION = 64 * MIB  # least amount of memory to go through: an H100 caches 50 MB
REAL = gpus.REAL
SENT = 17  # the seed of rank 0's bytes
SCALE = 1 if REAL else 64  # the fake driver copies by a processor


def pattern(size: int, seed: int) -> torch.Tensor:
    """Return bytes that show any loss by a shift."""
    return torch.arange(size, device="cuda").add(seed).remainder(251).to(torch.uint8)


def timed(action: Callable[[], object]) -> float:
    """Return the seconds until the current stream has done an action."""
    gpus.settle()
    start = time.perf_counter()
    action()
    gpus.settle()
    return time.perf_counter() - start


class Messages:
    """Equal messages from rank 0 to rank 1, through memory that is not cached."""

    def __init__(self, me: Rank, size: int, count: int) -> None:
        self._me, self._size, self._count = me, size, count
        self._seed = SENT if me.rank == 0 else 0
        parts = max(2, -(-ROTATION // SCALE // size))
        self._whole = pattern(size, self._seed).repeat(parts)
        self._parts = list(self._whole.view(parts, size).unbind())
        self._local = list(pattern(size, 5).repeat(parts).view(parts, size).unbind())
        # Separate, so that both ranks are at an equal position of messages.
        self._at = {"copies": 0, "messages": 0}

    def _turn(self, of: str) -> int:
        self._at[of] = (self._at[of] + 1) % len(self._parts)
        return self._at[of]

    def _copy_from(self, sources: list[torch.Tensor]) -> float:
        def copies() -> None:
            for _ in range(self._count):
                number = self._turn("copies")
                self._local[number].copy_(sources[number], non_blocking=True)

        seconds = timed(copies) if self._me.rank == 1 else 0.0
        self._me.barrier()  # the sender's context has nothing to do meanwhile
        return seconds

    def copies(self) -> float:
        """Return the seconds of as many copies by rank 1, within its own memory."""
        return self._copy_from(self._parts)

    def ipc_copies(self) -> Callable[[], float] | None:
        """Return a function for the seconds of as many copies by rank 1 from memory of rank 0.

        The memory is shared by torch's own CUDA IPC: the limit of every copy between processes.
        None if torch can't share memory; the log gives the reason.
        """
        sources: list[torch.Tensor] = []
        try:
            sources = self._shared_by_torch()
        except Exception as error:  # noqa: BLE001 - other ways can be measured all the same
            print(f"torch's CUDA IPC: {type(error).__name__}: {error}", flush=True)
        if not self._me.share(bool(sources))[1]:
            return None
        return lambda: self._copy_from(sources)

    def _shared_by_torch(self) -> list[torch.Tensor]:
        from torch.multiprocessing.reductions import reduce_tensor

        made = None
        try:
            if self._me.rank == 0:
                made = reduce_tensor(self._whole)
        finally:
            shared = self._me.share(made)[0]
        if self._me.rank == 0 or shared is None:
            return []
        rebuild, arguments = shared
        remote = rebuild(*arguments).view(len(self._parts), self._size)
        return list(remote.unbind())

    def messages(self, group: dist.ProcessGroup) -> float:
        """Return the seconds from the first post to the last byte at the receiver."""
        me = self._me
        post = dist.isend if me.rank == 0 else dist.irecv
        gpus.settle()
        me.barrier()

        def exchange() -> None:
            works = []
            for _ in range(self._count):
                part = self._parts[self._turn("messages")]
                works.append(post(part, 1 - me.rank, group=group))
            for work in works:
                work.wait()

        return timed(exchange)

    def check(self) -> None:
        """Raise PayloadError if the bytes received differ from the bytes sent."""
        self._me.barrier()
        if self._me.rank == 1:
            sent = pattern(self._size, SENT)
            for back in range(min(self._count, len(self._parts))):
                number = (self._at["messages"] - back) % len(self._parts)
                if not torch.equal(self._parts[number].cpu(), sent.cpu()):
                    raise PayloadError(f"message of {self._size} bytes: others were sent")
        self._me.barrier()


def ping_pong(me: Rank, group: dist.ProcessGroup, size: int, count: int) -> float:
    """Return the seconds of `count` one-way trips, from stream to stream."""
    buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
    gpus.settle()
    me.barrier()
    start = time.perf_counter()
    for _ in range(count):
        if me.rank == 0:
            dist.send(buffer, 1, group=group)
            dist.recv(buffer, 1, group=group)
        else:
            dist.recv(buffer, 0, group=group)
            dist.send(buffer, 0, group=group)
        gpus.settle()
    return (time.perf_counter() - start) / 2


def host_times(me: Rank, group: dist.ProcessGroup, size: int, count: int) -> tuple[float, float]:
    """Return the host's median seconds in an isend() or irecv(), and in a wait()."""
    buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    post = dist.isend if me.rank == 0 else dist.irecv
    gpus.settle()
    me.barrier()
    posts, waits, works = [], [], []
    for buffer in buffers:
        start = time.perf_counter()
        works.append(post(buffer, 1 - me.rank, group=group))
        posts.append(time.perf_counter() - start)
    for work in works:
        start = time.perf_counter()
        work.wait()
        waits.append(time.perf_counter() - start)
    gpus.settle()
    return median(posts), median(waits)


class Cache:
    """Registered pages of each rank; rank 1 reads rank 0's pages in another order.

    Each batch is of the next part of the pages, so that caches hold none of the part.
    """

    def __init__(self, me: Rank, group: dist.ProcessGroup, pages: int) -> None:
        self._me, self._pages = me, pages
        self._parts = max(2, -(-ROTATION // SCALE // (pages * PAGE)))
        self._memory = pattern(self._parts * pages * PAGE, me.rank)
        self._copied = torch.empty_like(self._memory)
        self._order = torch.arange(pages - 1, -1, -1, device="cuda")
        gpus.settle()  # the peer's reads wait for no stream of the rank
        self._at = 0
        self._read: set[int] = set()
        self._region = dlslime_backend.register(self._memory, name="pages")
        exported: list[bytes] = [b"", b""]
        dist.all_gather_object(exported, self._region.export(), group=group)
        self._remote = dlslime_backend.import_region(exported[1 - me.rank])
        self._peer = dlslime_backend.peer(1 - me.rank, group)

    def _alone(self, action: Callable[[], object]) -> float:
        seconds = timed(action) if self._me.rank == 1 else 0.0
        self._me.barrier()
        return seconds

    def _next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Move on; return the next part of the memory, and the place for copies of the part."""
        self._at = (self._at + 1) % self._parts
        shape = (self._parts, self._pages, PAGE)
        return self._memory.view(shape)[self._at], self._copied.view(shape)[self._at]

    def copy(self) -> float:
        """Return the seconds of a copy of as many bytes."""
        source, target = self._next()
        return self._alone(lambda: target.copy_(source, non_blocking=True))

    def gather(self) -> float:
        """Return the seconds of torch's kernel that copies as many pages in another order."""
        source, target = self._next()
        return self._alone(lambda: torch.index_select(source, 0, self._order, out=target))

    def read(self) -> float:
        """Return the seconds of a batch, with every page to another place."""
        self._next()
        if self._me.rank == 1:
            self._read.add(self._at)
        here = torch.arange(self._pages) + self._at * self._pages
        pieces = (here, here.flip(0), PAGE)
        return self._alone(lambda: self._peer.read(self._region, self._remote, pieces).wait())

    def check(self) -> None:
        """Raise PayloadError if a page read is not the peer's."""
        self._me.barrier()
        shape = (self._parts, self._pages, PAGE)
        theirs = pattern(self._memory.numel(), 0).cpu().view(shape)
        ours = self._memory.cpu().view(shape)
        for part in self._read:
            if not torch.equal(ours[part], theirs[part].flip(0)):
                raise PayloadError("pages that are not the peer's")
        self._me.barrier()

    def close(self) -> None:
        """Release the memory."""
        self._region.deregister()


class Allocations:
    """Allocations of rank 0, with a page of each read by rank 1.

    The first read of each allocation maps the allocation, later reads find the mapping.
    """

    def __init__(self, me: Rank, group: dist.ProcessGroup, count: int) -> None:
        self._me, self._count = me, count
        # Torch's allocator gives tensors of 10 MiB and more an allocation each.
        sizes = [12 * MIB if me.rank == 0 else count * PAGE] * (count if me.rank == 0 else 1)
        self._memory = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sizes]
        for number, memory in enumerate(self._memory):
            memory[:PAGE].copy_(pattern(PAGE, SENT + number))
        gpus.settle()  # the peer's reads wait for no stream of the rank
        self._regions = [
            dlslime_backend.register(memory, name=f"allocation {number}")
            for number, memory in enumerate(self._memory)
        ]
        exported: list[list[bytes]] = [[], []]
        dist.all_gather_object(exported, [each.export() for each in self._regions], group=group)
        self._remote = [dlslime_backend.import_region(each) for each in exported[1 - me.rank]]
        self._peer = dlslime_backend.peer(1 - me.rank, group)

    def read(self) -> float:
        """Return the seconds of a read of each allocation, of a page to a place of its own."""

        def reads() -> None:
            (mine,) = self._regions
            works = [
                self._peer.read(mine, remote, [(number * PAGE, 0, PAGE)])
                for number, remote in enumerate(self._remote)
            ]
            for work in works:
                work.wait()

        seconds = timed(reads) if self._me.rank == 1 else 0.0
        self._me.barrier()
        return seconds

    def check(self) -> None:
        """Raise PayloadError if a page read is not the peer's."""
        if self._me.rank == 1:
            pages = self._memory[0].cpu().view(self._count, PAGE)
            for number, page in enumerate(pages):
                if not torch.equal(page, pattern(PAGE, SENT + number).cpu()):
                    raise PayloadError(f"a page of allocation {number} that is not the peer's")
        self._me.barrier()

    def close(self) -> None:
        """Release the memory."""
        for region in self._regions:
            region.deregister()


def watched(me: Rank, group: dist.ProcessGroup, exchanges: int) -> dict[str, Any]:
    """Count the events that a profiler sees in a loop of exchanges."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    mine, theirs = (torch.zeros(MIB, dtype=torch.uint8, device="cuda") for _ in range(2))
    gpus.settle()
    me.barrier()
    # The driver's waits are no calls of torch: CUPTI's own records of waits are needed.
    waits = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profiled(activities=both, experimental_config=waits) as profiler:
        for _ in range(exchanges):
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, mine, 1 - me.rank, group=group),
                    dist.P2POp(dist.irecv, theirs, 1 - me.rank, group=group),
                ]
            ):
                work.wait()
    entries = profiler.key_averages()
    on_gpu = [entry for entry in entries if str(entry.device_type).endswith("CUDA")]
    syncs = ("Stream Sync", "Event Sync", "Context Sync", "Stream Wait")
    others = ("Memcpy", "Memset", *syncs)
    waits_of_host = {e.key: e.count for e in entries if " Sync" in e.key or "Synchronize" in e.key}
    return {
        "kernels": {e.key: e.count for e in on_gpu if not e.key.startswith(others)},
        "copies": sum(e.count for e in on_gpu if e.key.startswith("Memcpy")),
        "host_waits": waits_of_host,
    }
