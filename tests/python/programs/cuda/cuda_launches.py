"""Launches behind a waiting stream; torchrun for test_cuda and benchmarks/gpu_check.

With a full queue, or to load a kernel, the driver may hold back the copy that the stream waits for.
Then the stream is released after the time-out, `wait()` gives the reason, and the group goes on.
Prints whether the driver has made the copy.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

import gpus
from polling import eventually
from refusal import refused

SIZE = 1_000_000
LIMIT = timedelta(seconds=4 if gpus.REAL else 20)
MESSAGES = 3


def behind_streams(
    name: str,
    launch: Callable[[torch.Tensor], object],
    rank: int,
    launched: Callable[[], bool] = lambda: True,
) -> None:
    """Let a stream wait for several messages that come only while `launch` is under way."""
    peer = 1 - rank
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait([name])
        for _ in range(MESSAGES):
            dist.isend(torch.ones(SIZE, device="cuda"), peer)
        store.wait([f"{name} is over"])
        return
    received = [torch.zeros(SIZE, device="cuda") for _ in range(MESSAGES)]
    works = [dist.irecv(tensor, peer) for tensor in received]
    for work in works:
        work.wait(LIMIT)

    def tell() -> None:
        eventually(launched)
        time.sleep(1)
        store.set(name, "")

    teller = threading.Thread(target=tell)
    teller.start()
    launch(received[-1][:10])
    teller.join()
    gpus.settle()
    eventually(lambda: all(work.is_completed() for work in works))
    if all(work.is_success() for work in works):
        print(f"{name}: the driver has made the copy", flush=True)
        assert all(tensor.cpu().eq(1).all() for tensor in received)
    else:
        print(f"{name}: the driver has made no copy until the stream was let go", flush=True)
        for work in works:
            refused(dist.DistBackendError, "DLSLIME_STREAM_WAITS", work.wait)
    store.set(f"{name} is over", "")


def full_queue(rank: int, peer: int) -> None:
    copy = torch.zeros(10, device="cuda")
    launches = 0

    def launch(tensor: torch.Tensor) -> None:
        nonlocal launches
        for _ in range(5000):
            copy.copy_(tensor, non_blocking=True)
            launches += 1

    # Half of a queue's capacity, so that the queue is full a moment later.
    behind_streams("a full queue", launch, rank, lambda: launches > 500)


def late_kernel(rank: int, peer: int) -> None:
    """A kernel of torch, loaded at its first launch if kernels are loaded late."""
    behind_streams("a kernel's first launch", torch.nn.functional.gelu, rank)


def compiled_kernel(rank: int, peer: int) -> None:
    """A kernel compiled while the program runs, and so loaded at its first launch in any case."""
    behind_streams("a kernel that is compiled", torch.special.bessel_j0, rank)


def all_goes_on(rank: int, peer: int) -> None:
    received = torch.zeros(SIZE, device="cuda")
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((SIZE,), rank + 1.0, device="cuda"), peer),
            dist.P2POp(dist.irecv, received, peer),
        ]
    ):
        work.wait()
    gpus.settle()  # before a copy to the CPU, which would keep the driver from dlslime's copy
    assert received.cpu().eq(peer + 1).all()


if __name__ == "__main__":
    kernels = [late_kernel, compiled_kernel] if gpus.REAL else []
    gpus.run([full_queue, *kernels, all_goes_on])
