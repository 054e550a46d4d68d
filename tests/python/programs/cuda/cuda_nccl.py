"""Collectives of CUDA tensors by NCCL between two ranks; for test_cuda and benchmarks/gpu_check.

NCCL refuses two ranks of one host on one GPU, so each rank is a separate host for NCCL; for dlslime
both ranks are on one host.
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dlslime_backend
import gpus

OF_TWO_HOSTS = {
    "DLSLIME_HOSTID": "one",
    "NCCL_HOSTID": os.environ["RANK"],
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
}
LIMIT = timedelta(seconds=25 if gpus.REAL else 60)
LONG = 1_000_000


def filled(value: float, size: int = 1000) -> torch.Tensor:
    return torch.full((size,), float(value), device="cuda")


def all_are(tensor: torch.Tensor, value: float) -> bool:
    return tensor.cpu().unique().tolist() == [value]


def each_collective(rank: int, peer: int) -> None:
    total = filled(rank + 1)
    dist.all_reduce(total)
    assert all_are(total, 3), total
    shared = filled(rank)
    dist.broadcast(shared, 1)
    assert all_are(shared, 1), shared
    reduced = filled(rank + 1)
    dist.reduce(reduced, 0)
    assert rank or all_are(reduced, 3), reduced
    gathered = torch.zeros(2 * LONG, device="cuda")
    dist.all_gather_into_tensor(gathered, filled(rank, LONG))
    assert [half.unique().tolist() for half in gathered.cpu().split(LONG)] == [[0], [1]]
    scattered = torch.zeros(LONG, device="cuda")
    dist.reduce_scatter_tensor(scattered, filled(rank + 1, 2 * LONG))
    assert all_are(scattered, 3), scattered
    exchanged = torch.zeros(2, device="cuda")
    dist.all_to_all_single(exchanged, filled(rank, 2))
    assert exchanged.tolist() == [0, 1]
    listed = [torch.zeros(3, device="cuda") for _ in range(2)]
    dist.all_gather(listed, filled(rank, 3))
    assert [all_are(each, value) for value, each in enumerate(listed)] == [True, True]


def beside_those_of_the_cpu(rank: int, peer: int) -> None:
    for _ in range(20):
        there, here = filled(rank + 1), torch.full((3,), rank + 1)
        dist.all_reduce(there)
        dist.all_reduce(here)
        assert all_are(there, 3)
        assert here.tolist() == [3] * 3
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()


def not_waited_for_at_once(rank: int, peer: int) -> None:
    tensors = [filled(rank + 1, LONG) for _ in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    assert all(all_are(tensor, 3) for tensor in tensors)


def messages_pass_while_a_collective_waits(rank: int, peer: int) -> None:
    """NCCL's kernel at a rank spins until the peer's kernel begins, which comes after a message."""
    for size in (10, LONG):
        total, mine, received = filled(rank + 1), filled(rank, size), filled(-1, size)
        gpus.settle()
        side = gpus.stream()
        if rank == 0:
            work = dist.all_reduce(total, async_op=True)
            with gpus.on(side):
                dist.send(mine, peer)
                dist.recv(received, peer)
                assert all_are(received, peer)
        else:
            with gpus.on(side):
                dist.recv(received, peer)
                assert all_are(received, peer)
                dist.send(mine, peer)
            work = dist.all_reduce(total, async_op=True)
        work.wait()
        assert all_are(total, 3), total


def in_turn_with_messages(rank: int, peer: int) -> None:
    """A pipeline's step: the result of a collective is sent, and received values are reduced."""
    for step in range(20):
        value = filled(rank + step, LONG)
        dist.all_reduce(value)
        received = torch.empty_like(value)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, value * (rank + 1), peer),
                dist.P2POp(dist.irecv, received, peer),
            ]
        )
        for work in works:
            work.wait()
        dist.all_reduce(received)
        assert all_are(received, 3 * (1 + 2 * step)), (step, received)
    if gpus.REAL:
        assert dlslime_backend.stats()["peers"][peer]["cuda_ipc_messages"] >= 20


def groups_of_their_own(rank: int, peer: int) -> None:
    for _ in range(2):
        group = dist.new_group([0, 1], timeout=LIMIT)
        total = filled(rank + 1)
        dist.all_reduce(total, group=group)
        assert all_are(total, 3), total
        dist.destroy_process_group(group)


def data_parallel(rank: int, peer: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(100, 100).cuda())
    for _ in range(3):
        model(torch.randn(20, 100, device="cuda")).sum().backward()
    weight = next(model.parameters())
    assert weight.grad is not None
    for tensor in (weight.detach(), weight.grad):
        theirs = torch.empty_like(tensor)
        works = [dist.isend(tensor, peer), dist.irecv(theirs, peer)]
        for work in works:
            assert work is not None
            work.wait()
        assert torch.equal(tensor, theirs)


def coalesced(rank: int, peer: int) -> None:
    for device in (None, torch.device("cuda")):  # as Megatron's use, and as DeepSpeed's
        tensors = [filled(rank + 1), filled(rank + 1, LONG)]
        with dist._coalescing_manager(device=device, async_ops=True) as coalescing:
            for tensor in tensors:
                dist.all_reduce(tensor)
        coalescing.wait()
        assert all(all_are(tensor, 3) for tensor in tensors)


def aborted_by_both(rank: int, peer: int) -> None:
    """Rank 0's kernel never ends: aborting the group ends the kernel; the default group goes on."""
    group = dist.new_group([0, 1], timeout=LIMIT)
    dist.all_reduce(filled(1), group=group)
    gpus.settle()
    if rank == 0:
        dist.all_reduce(filled(1), group=group, async_op=True)
    dist.barrier()
    group._get_backend(torch.device("cuda")).abort()  # type: ignore[union-attr]
    total = filled(rank + 1)
    dist.all_reduce(total)
    assert all_are(total, 3), total


# The substitute of NCCL ends a collective before its call returns.
OF_NCCL_ITSELF = [messages_pass_while_a_collective_waits, data_parallel, aborted_by_both]
PARTS = [
    each_collective,
    beside_those_of_the_cpu,
    not_waited_for_at_once,
    in_turn_with_messages,
    groups_of_their_own,
    coalesced,
    *(OF_NCCL_ITSELF if gpus.REAL else []),
]


def main() -> int:
    os.environ.update(OF_TWO_HOSTS)
    gpus.use()
    if not gpus.REAL:
        import fake_gpu

        fake_gpu.use_nccl()
    dist.init_process_group("dlslime", timeout=LIMIT)
    rank, failed = dist.get_rank(), 0
    for part in PARTS:
        print(f"rank {rank}: {part.__name__}", flush=True)
        try:
            part(rank, 1 - rank)
        except Exception:  # a GPU may be at hand for minutes: the other parts are tried as well
            failed += 1
            print(f"rank {rank}: {part.__name__} failed\n{traceback.format_exc()}", flush=True)
        dist.barrier()
    dist.destroy_process_group()
    if not failed:
        print("all right")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
