"""Features that every supported torch must have; run by torchrun with two ranks.

    torchrun --standalone --nproc-per-node 2 tests/python/smoke/smoke.py

Plain torch.distributed without an import of dlslime_backend: the name "dlslime" comes from the
installed package's entry point.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = [0, 1, 1000, 300_000, 5_000_000]
BATCH = 200


def pattern(size: int, seed: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.int64) * 3 + seed


def send_and_recv(rank: int, peer: int) -> None:
    for tag, size in enumerate(SIZES):
        received = torch.empty(size, dtype=torch.int64)
        if rank == 0:
            dist.send(pattern(size, tag), peer, tag=tag)
            dist.recv(received, peer, tag=tag)
        else:
            assert dist.recv(received, None, tag=tag) == peer
            dist.send(received, peer, tag=tag)
        assert torch.equal(received, pattern(size, tag))


def batch(rank: int, peer: int) -> None:
    received = [torch.empty(7 * i, dtype=torch.int64) for i in range(BATCH)]
    ops = [dist.P2POp(dist.irecv, tensor, peer) for tensor in received]
    ops += [dist.P2POp(dist.isend, pattern(7 * i, rank + i), peer) for i in range(BATCH)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for i, tensor in enumerate(received):
        assert torch.equal(tensor, pattern(7 * i, peer + i))


def objects(rank: int, peer: int) -> None:
    message = [{"from": rank, "text": "x" * 1000}]
    received: list[object] = [None]
    if rank == 0:
        dist.send_object_list(message, peer)
        dist.recv_object_list(received, peer)
    else:
        dist.recv_object_list(received, peer)
        dist.send_object_list(message, peer)
    assert received == [{"from": peer, "text": "x" * 1000}]


def collectives(rank: int, peer: int) -> None:
    total = torch.full((1000,), float(rank + 1))
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((1000,), 3.0))
    gathered = [torch.empty(3) for _ in range(2)]
    dist.all_gather(gathered, torch.full((3,), float(rank)))
    assert gathered[peer].tolist() == [float(peer)] * 3
    dist.barrier()


def second_group(rank: int, peer: int) -> None:
    group = dist.new_group([0, 1])
    works = [dist.isend(pattern(5, rank), peer, group=group)]
    received = torch.empty(5, dtype=torch.int64)
    works.append(dist.irecv(received, peer, group=group))
    for work in works:
        work.wait()
    assert torch.equal(received, pattern(5, peer))


def too_long_message_raises(rank: int, peer: int) -> None:
    if rank == 0:
        dist.isend(pattern(9, 0), peer, tag=77)
        dist.send(pattern(4, 1), peer, tag=77)
        return
    text = ""
    try:
        dist.recv(torch.empty(4, dtype=torch.int64), peer, tag=77)
    except RuntimeError as error:
        text = str(error)
    assert "72" in text, f"both byte counts are expected in: {text!r}"
    assert "32" in text, f"both byte counts are expected in: {text!r}"
    received = torch.empty(4, dtype=torch.int64)
    dist.recv(received, peer, tag=77)
    assert torch.equal(received, pattern(4, 1))


CHECKS: list[Callable[[int, int], None]] = [
    send_and_recv,
    batch,
    objects,
    collectives,
    second_group,
    too_long_message_raises,
]


def main() -> None:
    dist.init_process_group("dlslime", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    for check in CHECKS:
        check(rank, 1 - rank)
        dist.barrier()
        if rank == 0:
            print(f"   {check.__name__} ok", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print(f"   {len(CHECKS)} checks passed with torch {torch.__version__}")


if __name__ == "__main__":
    main()
