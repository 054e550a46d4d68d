"""torch's windows over dlslime; run by torchrun with two or more ranks, torch 2.15 or later.

torchrun --standalone --nproc-per-node 3 tests/python/smoke_window.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from refusal import refused

COUNT = 200_000
ROUNDS = 100


def everybody_puts(window: Any, mine: torch.Tensor, rank: int, size: int) -> None:
    """Each rank writes its number into its own part of all windows, its own window among them."""
    share = COUNT // size
    for peer in range(size):
        window.put(torch.full((share,), rank + 1), peer, rank * share, True)
        window.signal(peer, True)
    for peer in range(size):
        window.wait_signal(peer, False)
        assert mine[peer * share : (peer + 1) * share].eq(peer + 1).all(), peer


def signals_follow_puts(window: Any, mine: torch.Tensor, rank: int, size: int) -> None:
    """A value that goes round a ring, larger by one each time."""
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
    other = "can't be mapped into this process"
    refused(NotImplementedError, other, lambda: window.map_remote_tensor(next_rank))
    assert window.map_remote_tensor(rank).data_ptr() == mine.data_ptr()
    window.put(torch.empty(0, dtype=torch.int64), 0, 0, False)


def windows(rank: int, size: int) -> None:
    mine, other = torch.zeros(COUNT, dtype=torch.int64), torch.zeros(10, dtype=torch.int64)
    window, second = c10d._new_window(mine), c10d._new_window()
    refused(ValueError, "has no tensor", lambda: second.put(other, 0, 0, False))
    second.tensor_register(other)
    for check in (everybody_puts, signals_follow_puts, bad_calls):
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
    dist.barrier()  # and `second` is dropped as it is


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
