"""Messages of CUDA tensors between two ranks; torchrun for test_cuda and benchmarks/gpu_check."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

import dlslime_backend
import gpus
from refusal import refused

HOST_WAITS = "--host-waits" in sys.argv
SIZES = [1, 1000, 16_384, 16_385, 1_000_003]  # of 4 bytes: eager and rendezvous messages


def wave(size: int, seed: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.int32) * 7 + seed


def cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU.

    A stream that waits for a message keeps the driver from copying the message, if the copy to the
    CPU is on the default stream: so programs that let streams wait settle the streams first.
    """
    if not HOST_WAITS:
        gpus.settle()
    return tensor.cpu()


def exchange(mine: torch.Tensor, theirs: torch.Tensor, peer: int) -> None:
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    ):
        work.wait()


def every_pair_of_devices(rank: int, peer: int) -> None:
    for size in SIZES:
        for mine, theirs in (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")):
            received = torch.zeros(size, dtype=torch.int32, device=theirs)
            exchange(wave(size, rank).to(mine), received, peer)
            assert torch.equal(cpu(received), wave(size, peer)), (size, mine, theirs)
    counted = dlslime_backend.stats()["peers"][peer]
    between_gpus = sum(size * 4 > 64 * 1024 for size in SIZES)
    assert counted["cuda_ipc_messages"] == (between_gpus if counted["route"] == "shm" else 0)


def dtypes_views_and_blocking_calls(rank: int, peer: int) -> None:
    for dtype in (torch.bfloat16, torch.float64, torch.bool, torch.float16, torch.uint8):
        whole = torch.ones(4, 50, device="cuda").to(dtype)
        part = torch.zeros(6, 50, device="cuda").to(dtype)
        if rank == 0:
            dist.send(whole[1:3], peer, tag=4)
        else:
            assert dist.recv(part[2:4], tag=4) == 0  # from any source
        assert cpu(part[2:4]).to(torch.float64).sum().item() == 100 * rank
        assert cpu(part[:2]).to(torch.float64).sum().item() == 0
    empty = torch.empty(0, device="cuda")
    exchange(empty, empty.clone(), peer)
    refused(
        ValueError,
        "send of a non-contiguous tensor",
        lambda: dist.isend(torch.ones(3, 4, device="cuda").t(), peer),
    )


def streams_keep_the_order(rank: int, peer: int) -> None:
    """Sends carry the bytes computed on the stream, and later uses on the stream see new bytes."""
    stream = gpus.stream()
    for size in SIZES:
        values = wave(size, 3).cuda()
        with gpus.on(stream):
            mine = torch.zeros(size, dtype=torch.int32, device="cuda")
            theirs = torch.zeros_like(mine)
            result = torch.zeros_like(mine)
            for step in range(5):
                mine.copy_(values, non_blocking=True)
                works = [dist.isend(mine, peer, tag=step), dist.irecv(theirs, peer, tag=step)]
                for work in works:
                    work.wait()
                result.copy_(theirs, non_blocking=True)
                mine.copy_(result, non_blocking=True)  # sent memory may be changed
        stream.synchronize()
        assert torch.equal(result.cpu(), wave(size, 3)), size


def waiting_blocks_the_stream_alone(rank: int, peer: int) -> None:
    received = torch.zeros(1000, device="cuda")
    if rank == 0:
        work = dist.irecv(received, peer, tag=9)
        assert work is not None
        assert work.wait()
        work.synchronize()
        assert not work.is_completed()  # the message has not been sent yet
        copy = torch.empty_like(received).copy_(received, non_blocking=True)
        dist.barrier()
        assert cpu(copy).sum().item() == 1000
        assert work.is_completed()
        assert work.is_success()
        assert work.get_future().wait()[0].sum().item() == 1000
        assert work.result()[0].data_ptr() == received.data_ptr()
    else:
        dist.barrier()
        dist.send(torch.ones(1000, device="cuda"), peer, tag=9)


def waiting_blocks_the_host(rank: int, peer: int) -> None:
    received = torch.zeros(1000, device="cuda")
    if rank == 0:
        work = dist.irecv(received, peer, tag=9)
        assert work is not None
        refused(
            dist.DistBackendError,
            "tag 9.*timed out after 300 ms",
            lambda: work.wait(timedelta(milliseconds=300)),
        )
        dist.barrier()
        dist.recv(received, peer, tag=11)
        assert received.sum().item() == 1000
    else:
        dist.barrier()
        dist.send(torch.ones(1000, device="cuda"), peer, tag=11)


def a_stream_is_let_go_after_the_time_out(rank: int, peer: int) -> None:
    if rank == 0:
        received = torch.zeros(1000, device="cuda")
        work = dist.irecv(received, peer, tag=10)
        assert work is not None
        begin = time.monotonic()
        assert work.wait(timedelta(seconds=1))  # would raise if the call waited
        gpus.settle()
        assert time.monotonic() - begin > 0.9
        refused(dist.DistBackendError, "tag 10.*timed out after 1000 ms", lambda: work.wait())
        assert not work.is_success()
        received.fill_(1)  # the caller may use the memory again
    dist.barrier()
    exchange(torch.ones(10, device="cuda"), torch.ones(10, device="cuda"), peer)


def memory_is_kept_until_it_is_over(rank: int, peer: int) -> None:
    if rank == 0:
        for tag in range(20):
            dist.isend(torch.full((30_000,), float(tag), device="cuda"), peer, tag=tag)
            torch.full((30_000,), -1.0, device="cuda")  # would reuse memory freed too early
        dist.barrier()
    else:
        dist.barrier()
        for tag in range(20):
            received = torch.zeros(30_000, device="cuda")
            dist.recv(received, peer, tag=tag)
            assert cpu(received).eq(tag).all(), tag


def abort_lets_the_stream_go(rank: int, peer: int) -> None:
    group = dist.new_group(backend="dlslime")
    if rank == 0:
        received = torch.zeros(1000, device="cuda")
        work = dist.irecv(received, peer, group=group)
        assert work is not None
        work.wait()
        dlslime = group._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
        dlslime.abort()
        gpus.settle()
        refused(dist.DistBackendError, "aborted", lambda: work.wait())
    dist.barrier()


def graphs_are_refused(rank: int, peer: int) -> None:
    tensor = torch.ones(1000, device="cuda")
    gpus.settle()
    with gpus.capturing(gpus.stream()):
        refused(ValueError, "can't be captured in a CUDA graph", lambda: dist.isend(tensor, peer))
        refused(ValueError, "can't be captured in a CUDA graph", lambda: dist.irecv(tensor, peer))
    received = torch.zeros(1000, device="cuda")
    exchange(tensor, received, peer)  # refused operations are not queued
    assert cpu(received).sum().item() == 1000


def beside_tensors_of_the_cpu(rank: int, peer: int) -> None:
    total = torch.ones(3) * rank
    dist.all_reduce(total)
    assert total.tolist() == [1, 1, 1]
    mine = torch.ones(3, device="cuda")
    if not dist.is_nccl_available():
        text = "CUDA tensors go by NCCL, which this torch lacks"
        refused(RuntimeError, text, lambda: dist.all_reduce(mine))
    elif torch.cuda.device_count() > 1:  # NCCL takes one rank for each GPU
        dist.all_reduce(mine)
        assert mine.tolist() == [2, 2, 2]
    else:
        alone = [dist.new_group([0]), dist.new_group([1])]
        dist.all_reduce(mine, group=alone[rank])
        assert mine.tolist() == [1, 1, 1]
    assert dlslime_backend.stats()["peers"]


def main() -> None:
    parts: list[Callable[[int, int], None]] = [
        every_pair_of_devices,
        dtypes_views_and_blocking_calls,
        streams_keep_the_order,
        memory_is_kept_until_it_is_over,
        graphs_are_refused,
        beside_tensors_of_the_cpu,
    ]
    if HOST_WAITS:
        parts += [waiting_blocks_the_host]
    else:
        parts += [
            waiting_blocks_the_stream_alone,
            a_stream_is_let_go_after_the_time_out,
            abort_lets_the_stream_go,
        ]
    gpus.run(parts)


if __name__ == "__main__":
    main()
