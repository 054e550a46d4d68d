"""TORCH_DISTRIBUTED_DEBUG=DETAIL: torch wraps the backend and checks every collective."""

import pytest
import torch
import torch.distributed as dist

from harness import dlslime_only, run_world, sync
from patterns import blank, expect_pattern, pattern
from test_groups import exchange

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def _everything(rank: int, size: int) -> None:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    exchange(None, 1)
    exchange(None, 2, 300_000)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 4
    received = blank(10)
    work = dist.isend(pattern(10, rank), (rank + 1) % size)
    assert dist.recv(received) == (rank - 1) % size
    work.wait()
    expect_pattern(received, (rank - 1) % size)
    group = dist.new_group()
    exchange(group, 3)
    dist.barrier(group)
    objects: list = [None] * size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))


@pytest.mark.parametrize("size", [2, 3])
def test_messages_and_collectives_under_detail(size: int) -> None:
    run_world(_everything, size, env=DETAIL)


def _uneven_messages(rank: int, size: int) -> None:
    """Messages between some ranks only must not count in the collectives' fingerprints."""
    if rank < 2:
        for i in range(3):
            exchange_pair(rank, i)
    dist.barrier()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 2


def exchange_pair(rank: int, seed: int) -> None:
    """Exchange a message between ranks 0 and 1."""
    received = blank(100)
    work = dist.isend(pattern(100, rank + seed), 1 - rank)
    dist.recv(received, 1 - rank)
    work.wait()
    expect_pattern(received, 1 - rank + seed)


@dlslime_only
def test_messages_of_a_pair_do_not_upset_later_collectives() -> None:
    run_world(_uneven_messages, 3, env=DETAIL)


def _mismatch(rank: int, size: int) -> None:
    with pytest.raises(RuntimeError, match="(?i)mismatch|fingerprint"):
        dist.all_reduce(torch.ones(2 + rank))
    sync("told")


def test_mismatched_collectives_are_reported() -> None:
    run_world(_mismatch, 2, env=DETAIL, fresh=True)


def _refused(rank: int, size: int) -> None:
    with pytest.raises((ValueError, RuntimeError), match="contiguous"):
        dist.isend(torch.ones(3, 4).t(), 1 - rank)
    with pytest.raises((ValueError, RuntimeError), match="(?i)tag"):
        dist.isend(torch.ones(3), 1 - rank, tag=-1)
    exchange(None)


def test_bad_input_is_refused_under_detail() -> None:
    run_world(_refused, 2, env=DETAIL)


def _batches(rank: int, size: int) -> None:
    received = [blank(100) for _ in range(50)]
    ops = [dist.P2POp(dist.irecv, t, 1 - rank) for t in received]
    ops += [dist.P2POp(dist.isend, pattern(100, i + rank), 1 - rank) for i in range(50)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for i, tensor in enumerate(received):
        expect_pattern(tensor, i + 1 - rank)


def test_batches_under_detail() -> None:
    run_world(_batches, 2, env=DETAIL)


def _abort_and_shutdown(rank: int, size: int) -> None:
    exchange(None)
    sync("used")
    dist.group.WORLD.abort()
    dist.group.WORLD.shutdown()


@dlslime_only
def test_abort_and_shutdown_under_detail() -> None:
    run_world(_abort_and_shutdown, 2, env=DETAIL, fresh=True)
