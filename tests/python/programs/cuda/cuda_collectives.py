"""Collectives of CUDA tensors by a substitute of NCCL, on fake GPUs; for test_cuda."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

import fake_gpu
from refusal import refused

TIMEOUT = timedelta(seconds=60)


def made_by_the_first_collective(rank: int, size: int) -> None:
    dist.barrier()  # of the CPU
    peer = (rank + 1) % size
    mine = torch.full((1000,), float(rank), device="cuda")
    received = torch.zeros(1000, device="cuda")
    work = dist.irecv(received)  # from any source
    dist.send(mine, peer)
    work.wait()
    assert received.cpu().tolist() == [float((rank - 1) % size)] * 1000
    assert MADE == []
    total = torch.full((1000,), float(rank + 1), device="cuda")
    dist.all_reduce(total)
    assert total.cpu().tolist() == [float(size * (size + 1) // 2)] * 1000
    assert len(MADE) == 1
    assert MADE[0]._timeout == TIMEOUT
    assert MADE[0].global_ranks_in_group == []  # of the default group torch names none
    assert MADE[0].group_name == dist.group.WORLD.group_name  # type: ignore[union-attr]
    assert extension.take_nccl_calls() == ["allreduce"]


def beside_those_of_the_cpu(rank: int, size: int) -> None:
    for _ in range(3):
        there = torch.full((3,), rank, device="cuda")
        here = torch.full((3,), rank)
        dist.all_reduce(there)
        dist.all_reduce(here)
        assert there.cpu().tolist() == here.tolist() == [size * (size - 1) // 2] * 3
    shared = torch.full((5,), rank, device="cuda")
    dist.broadcast(shared, 1)
    assert shared.cpu().tolist() == [1] * 5
    gathered = torch.zeros(size * 2, device="cuda")
    dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank), device="cuda"))
    assert gathered.cpu().tolist() == [float(r) for r in range(size) for _ in range(2)]
    exchanged = torch.zeros(size, device="cuda")
    dist.all_to_all_single(exchanged, torch.full((size,), float(rank), device="cuda"))
    assert exchanged.cpu().tolist() == list(range(size))
    calls = ["allreduce"] * 3 + ["broadcast", "_allgather_base", "alltoall_base"]
    assert extension.take_nccl_calls() == calls
    assert len(MADE) == 1


def each_group_has_its_own(rank: int, size: int) -> None:
    quiet = dist.new_group(list(range(size)), timeout=timedelta(seconds=30))
    pair = dist.new_group([0, size - 1], timeout=timedelta(seconds=30))
    if rank in (0, size - 1):
        total = torch.ones(3, device="cuda")
        dist.all_reduce(total, group=pair)
        assert total.cpu().tolist() == [2, 2, 2]
        assert len(MADE) == 2
        assert MADE[1]._timeout == timedelta(seconds=30)
        assert MADE[1].global_ranks_in_group == [0, size - 1]
    dist.barrier(group=quiet)
    dist.destroy_process_group(quiet)
    extension.take_nccl_calls()


def suspended_with_the_group(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
    assert backend.memory_stats()["suspend"] >= 1000
    backend.suspend()
    refused(
        dist.DistBackendError, "suspended", lambda: dist.all_reduce(torch.ones(1, device="cuda"))
    )
    backend.resume()
    assert extension.take_nccl_calls() == ["suspend", "resume"]
    dist.all_reduce(torch.ones(1, device="cuda"))
    assert extension.take_nccl_calls() == ["allreduce"]


def ended_with_the_group(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    backend = group._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
    assert extension.take_nccl_calls() == ["allreduce"]
    dist.barrier()
    backend.abort()
    assert extension.take_nccl_calls() == ["abort"]
    dist.barrier()
    dist.destroy_process_group()
    assert "shutdown" in extension.take_nccl_calls()


if __name__ == "__main__":
    extension = fake_gpu.use()
    MADE = fake_gpu.use_nccl()
    dist.init_process_group("dlslime", timeout=TIMEOUT)
    for part in (
        made_by_the_first_collective,
        beside_those_of_the_cpu,
        each_group_has_its_own,
        suspended_with_the_group,
        ended_with_the_group,
    ):
        part(dist.get_rank(), dist.get_world_size())
    print("all right")
