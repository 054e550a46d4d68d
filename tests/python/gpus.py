"""The GPUs of tests: the machine's if DLSLIME_TEST_GPUS is "real", else fake GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
import torch.distributed as dist

import dlslime_backend

REAL = os.environ.get("DLSLIME_TEST_GPUS") == "real"


def use(rank: int | None = None) -> None:
    """Make a GPU current in the process: the GPU of `rank`, or of torchrun's LOCAL_RANK."""
    if not REAL:
        import fake_gpu

        fake_gpu.use()
        return
    number = int(os.environ.get("LOCAL_RANK", "0")) if rank is None else rank
    torch.cuda.set_device(number % torch.cuda.device_count())


def stream() -> torch.Stream:
    """Make a stream of the current GPU."""
    return torch.cuda.Stream() if REAL else torch.Stream(device="cuda:0")


def on(stream: torch.Stream) -> AbstractContextManager[object]:
    """Make a stream current for a while."""
    if REAL:
        manager: AbstractContextManager[object] = torch.cuda.stream(stream)  # type: ignore[arg-type]
        return manager
    import fake_gpu

    return fake_gpu.on(stream)


def capturing(stream: torch.Stream) -> AbstractContextManager[object]:
    """Capture a stream, not the default stream, into a CUDA graph for a while."""
    if REAL:
        graph = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream)  # type: ignore[arg-type]
        manager: AbstractContextManager[object] = graph
        return manager
    import fake_gpu

    return fake_gpu.capturing(stream)


def settle() -> None:
    """Wait until the current stream has finished its work."""
    if REAL:
        torch.cuda.current_stream().synchronize()
    else:
        import fake_gpu

        fake_gpu.settle()


def run(parts: list[Callable[[int, int], None]]) -> None:
    """Call each part in both ranks of a torchrun job of two, as part(rank, peer)."""
    use()
    # A GPU is lent for minutes: a hang must be reported before the step is stopped.
    limit = timedelta(seconds=25 if REAL else 60)
    dist.init_process_group("dlslime", timeout=limit)
    rank = dist.get_rank()
    for part in parts:
        print(f"rank {rank}: {part.__name__}", flush=True)
        part(rank, 1 - rank)
        dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("all right")


def exchange_until_direct(rank: int, peer: int, nbytes: int = 1 << 20) -> None:
    """Exchange messages between memory of GPUs until both ranks get them from GPU to GPU.

    From then on every message goes so. Each message is checked.
    """
    from patterns import expect_pattern, pattern

    direct, theirs = 0, 0
    for turn in range(20_000):
        before, got = (direct, theirs), torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        receive = dist.irecv(got, peer)
        dist.send(pattern(nbytes, 2 * turn + rank).to("cuda"), peer)
        receive.wait()
        settle()
        expect_pattern(got.cpu(), 2 * turn + peer)
        direct = dlslime_backend.stats()["peers"][peer]["cuda_ipc_messages"]
        numbers = torch.tensor([0])
        receive = dist.irecv(numbers, peer)
        dist.send(torch.tensor([direct]), peer)
        receive.wait()
        theirs = int(numbers)
        if min(before) > 0:
            assert (direct, theirs) == (before[0] + 1, before[1] + 1)
        if min(direct, theirs) > 5:
            return
    raise AssertionError(f"{direct} and {theirs} messages went from GPU to GPU")
