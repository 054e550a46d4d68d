"""suspend() and resume(): memory given back for a while, and uses in between refused."""

import pytest
import torch
import torch.distributed as dist

import dlslime_backend as dlslime
from harness import dlslime_only, run_world, sync
from patterns import blank, expect_pattern, pattern

MESSAGES = 30
NBYTES = 8000  # travels through the ring


def _backend(group: dist.ProcessGroup | None = None) -> torch._C._distributed_c10d.Backend:
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def _traffic(rank: int, tag: int, group: dist.ProcessGroup | None = None) -> None:
    """Send messages both ways; nothing is pending afterwards."""
    for number in range(MESSAGES):
        received = blank(NBYTES)
        work = dist.irecv(received, 1 - rank, group=group, tag=tag)
        dist.send(pattern(NBYTES, number + rank), 1 - rank, group=group, tag=tag)
        work.wait()
        expect_pattern(received, number + 1 - rank)


def _give_back(rank: int, size: int) -> None:
    _traffic(rank, 1)
    sync("traffic")
    backend = _backend()
    before = backend.memory_stats()
    assert before["suspended"] == 0
    assert before["suspend"] >= MESSAGES * NBYTES
    assert before["persist"] > 0
    assert before["total"] == before["suspend"] + before["persist"]
    backend.suspend()
    backend.suspend()  # twice is once
    assert backend.memory_stats() | {"suspended": 0} == before | {
        "suspend": 0,
        "total": before["persist"],
    }
    assert backend.memory_stats()["suspended"] == 1
    sync("suspended")
    backend.resume()
    backend.resume()
    assert backend.memory_stats()["suspended"] == 0
    _traffic(rank, 1)
    dist.all_reduce(torch.ones(2))
    sync("over")


@dlslime_only
def test_suspend_gives_back_what_messages_have_used() -> None:
    run_world(_give_back, 2)


def _refused(rank: int, size: int) -> None:
    _traffic(rank, 1)
    dist.all_reduce(torch.ones(2))
    sync("traffic")
    backend = _backend()
    backend.suspend()
    region = dlslime.register(blank(100), "memory")
    remote = dlslime.import_region(region.export())
    peer = dlslime.peer(1 - rank)
    for use in (
        lambda: dist.send(blank(1), 1 - rank),
        lambda: dist.irecv(blank(1), 1 - rank),
        lambda: dist.recv(blank(1)),
        lambda: dist.all_reduce(torch.ones(2)),
        dist.barrier,
        lambda: peer.read(region, remote, [(0, 0, 1)]),
        lambda: peer.send(blank(1)),
    ):
        with pytest.raises(dist.DistBackendError, match="dlslime: .*suspended: call resume"):
            use()
    sync("refused")
    backend.resume()
    _traffic(rank, 1)
    dist.all_reduce(torch.ones(2))
    sync("over")


@dlslime_only
def test_uses_of_a_suspended_group_are_refused() -> None:
    run_world(_refused, 2)


def _pending(rank: int, size: int) -> None:
    _traffic(rank, 1)
    received = blank(NBYTES)
    work = dist.irecv(received, 1 - rank, tag=2)
    with pytest.raises(RuntimeError, match=r"dlslime: 1 operations.*recv from rank.*tag 2"):
        _backend().suspend()
    assert _backend().memory_stats()["suspended"] == 0
    sync("refused")
    dist.send(pattern(NBYTES, 3), 1 - rank, tag=2)  # the peer is not suspended
    work.wait()
    expect_pattern(received, 3)
    sync("over")


@dlslime_only
def test_suspend_is_refused_while_operations_are_pending() -> None:
    run_world(_pending, 2)


def _other_group(rank: int, size: int) -> None:
    other = dist.new_group([0, 1])
    _traffic(rank, 1)
    _traffic(rank, 1, other)
    sync("traffic")
    _backend().suspend()
    for _ in range(3):
        _traffic(rank, 1, other)  # by the same connection
    sync("other")
    _backend().resume()
    _traffic(rank, 1)
    sync("over")


@dlslime_only
def test_groups_that_share_the_connection_go_on() -> None:
    run_world(_other_group, 2)


def _alone(rank: int, size: int) -> None:
    stats = _backend().memory_stats()
    assert stats == {"suspend": 0, "persist": 0, "total": 0, "suspended": 0}
    _backend().suspend()
    _backend().resume()
    sync("over")


@dlslime_only
def test_group_that_was_never_used_holds_nothing() -> None:
    run_world(_alone, 2)
