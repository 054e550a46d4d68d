"""torch's windows over dlslime; run by torchrun with two or more ranks, torch 2.15 or later.

torchrun --standalone --nproc-per-node 3 tests/python/smoke/smoke_window.py
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from refusal import refused

COUNT = 200_000
ROUNDS = 100


def all_ranks_put(window: Any, mine: torch.Tensor, rank: int, size: int) -> None:
    """Each rank writes its number into its own part of all windows, also of its own window."""
    share = COUNT // size
    for peer in range(size):
        window.put(torch.full((share,), rank + 1), peer, rank * share, True)
        window.signal(peer, True)
    for peer in range(size):
        window.wait_signal(peer, False)
        assert mine[peer * share : (peer + 1) * share].eq(peer + 1).all(), peer


def signals_follow_puts(window: Any, mine: torch.Tensor, rank: int, size: int) -> None:
    """A value goes round a ring, and grows by one at each rank."""
    after, before = (rank + 1) % size, (rank - 1) % size
    for turn in range(ROUNDS):
        if rank != 0 or turn != 0:
            window.wait_signal(before, False)
        value = int(mine[0]) + 1 if turn or rank else 1
        assert turn == 0 or value == turn * size + rank + 1, (turn, value)
        window.put(torch.tensor([value]), after, 0, True)
        window.signal(after, False)
    if rank == 0:
        window.wait_signal(before, False)
        assert mine[0] == ROUNDS * size


def bad_calls(window: Any, mine: torch.Tensor, rank: int, size: int) -> None:
    one = torch.ones(1, dtype=torch.int64)
    outside = "is outside of"
    refused(ValueError, "a window has ranks", lambda: window.put(one, size, 0, False))
    refused(ValueError, outside, lambda: window.put(one, 0, COUNT, False))
    refused(ValueError, outside, lambda: window.put(one, 0, -1, False))
    refused(ValueError, outside, lambda: window.put(one, 0, 2**62, False))
    strided, next_rank = mine.view(2, -1).t(), (rank + 1) % size
    refused(ValueError, "non-contiguous", lambda: window.put(strided, 0, 0, False))
    refused(ValueError, "a window has ranks", lambda: window.wait_signal(-1, False))
    refused(ValueError, "has a tensor already", lambda: window.tensor_register(mine))
    other = "is in ordinary memory"
    refused(NotImplementedError, other, lambda: window.map_remote_tensor(next_rank))
    refused(ValueError, "a window has ranks", lambda: window.map_remote_tensor(size))
    assert window.map_remote_tensor(rank).data_ptr() == mine.data_ptr()
    window.put(torch.empty(0, dtype=torch.int64), 0, 0, False)


def shared(count: int, dtype: torch.dtype) -> torch.Tensor:
    cpu = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(cpu)
    return backend.allocate_tensor(count, dtype=dtype, device=cpu)


def in_child(check: Callable[[], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads is the subject
        pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            check()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def mapped(rank: int, size: int) -> None:
    """Ranks write to each other's tensors in place; the tensors lie in the middle of memory."""
    memory = shared(1000, torch.float32)
    mine = memory[100 : 100 + 6 * size].view(size, 6)
    window = c10d._new_window(mine)
    descriptors = len(os.listdir("/proc/self/fd"))
    theirs = [window.map_remote_tensor(peer) for peer in range(size)]
    assert len(os.listdir("/proc/self/fd")) == descriptors, "a mapping needs none"
    in_child(lambda: refused(RuntimeError, "fork", lambda: window.map_remote_tensor(0)))
    in_child(lambda: refused(RuntimeError, "fork", lambda: window.signal(0, True)))
    own, after = theirs[rank], (rank + 1) % size
    same = "overlap what they are copied from"
    for peer, there in ((rank, own), (after, theirs[after])):  # the rank's pages, and the peer's
        refused(ValueError, same, lambda p=peer, t=there: window.put(t[0, :3], p, 1, False))  # type: ignore[misc]
    for peer, there in enumerate(theirs):
        assert (there.shape, there.dtype) == (mine.shape, mine.dtype)
        there[rank] = rank + 1
        window.signal(peer, True)
    for peer in range(size):
        window.wait_signal(peer, False)
    assert mine.eq(torch.arange(1, size + 1).view(size, 1)).all()
    assert memory.sum() == mine.sum()
    dist.barrier()  # a rank ahead would write into memory that others still compare
    # A window's writes are visible as well, and mappings outlast the window.
    window.put(torch.full((1,), 50.0 + rank), after, 3, True)
    window.signal(after, False)
    window.wait_signal((rank - 1) % size, False)
    dist.barrier()
    assert theirs[after][0, 3] == 50 + rank
    window.tensor_deregister()
    refused(ValueError, "has no tensor", lambda: window.map_remote_tensor(after))
    theirs[after][0, 4] = 7
    dist.barrier()
    assert mine[0, 4] == 7


def dtypes_differ(rank: int, size: int) -> None:
    dtype = torch.float32 if rank == 0 else torch.int32
    tensor = torch.zeros(10, dtype=dtype)
    refused(ValueError, "are of one dtype", lambda: c10d._new_window(tensor))


def windows(rank: int, size: int) -> None:
    mine, other = torch.zeros(COUNT, dtype=torch.int64), torch.zeros(10, dtype=torch.int64)
    window, second = c10d._new_window(mine), c10d._new_window()
    refused(ValueError, "has no tensor", lambda: second.put(other, 0, 0, False))
    second.tensor_register(other)
    for check in (all_ranks_put, signals_follow_puts, bad_calls):
        dist.barrier()
        check(window, mine, rank, size)
    dist.barrier()
    second.put(torch.full((1,), rank + 1), (rank + 1) % size, 3, False)
    dist.barrier()
    assert other.tolist() == [0, 0, 0, (rank - 1) % size + 1, 0, 0, 0, 0, 0, 0]
    second.tensor_deregister()
    refused(ValueError, "has no tensor", second.tensor_deregister)
    second.tensor_register(other)
    window.tensor_deregister()
    mapped(rank, size)
    dtypes_differ(rank, size)
    dist.barrier()  # `second` is dropped without deregistering


def main() -> None:
    dist.init_process_group("dlslime", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert c10d._supports_window()
    windows(rank, size)
    dist.destroy_process_group()
    if rank == 0:
        print(f"   windows of torch {torch.__version__} work over dlslime", flush=True)


if __name__ == "__main__":
    main()
