"""A full launch queue behind a stream that waits; torchrun for test_cuda and benchmarks/gpu_check.

The driver may keep the copy from being made for which the stream waits. Then the stream is let go
when the time-out is over, `wait()` says why, and all goes on. Prints which of both has happened.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

import gpus
from refusal import refused

SIZE = 1_000_000
LIMIT = timedelta(seconds=7)


def many_launches(rank: int, peer: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["launching"])
        dist.send(torch.ones(SIZE, device="cuda"), peer)
        return
    received = torch.zeros(SIZE, device="cuda")
    copy = torch.zeros(10, device="cuda")
    copy.copy_(received[:10])
    work = dist.irecv(received, peer)
    assert work is not None
    work.wait(LIMIT)
    store.set("launching", "")
    if gpus.REAL:
        torch.special.bessel_j0(received[:10])  # which the driver may have to load
    for _ in range(5000):
        copy.copy_(received[:10], non_blocking=True)
    copy.cpu()
    if work.is_success():
        print("the driver has made the copy", flush=True)
        assert copy.cpu().sum().item() == 10
    else:
        print("the driver has made no copy until the stream was let go", flush=True)
        refused(dist.DistBackendError, "DLSLIME_STREAM_WAITS", lambda: work.wait())


def all_goes_on(rank: int, peer: int) -> None:
    received = torch.zeros(SIZE, device="cuda")
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((SIZE,), rank + 1.0, device="cuda"), peer),
            dist.P2POp(dist.irecv, received, peer),
        ]
    ):
        work.wait()
    assert received.cpu().eq(peer + 1).all()


if __name__ == "__main__":
    gpus.run([many_launches, all_goes_on])
