"""Receives from any source: matching, the reported rank, and directed receives alongside."""

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, tell
from patterns import blank, expect_pattern, pattern

LARGE = 400_000


def _gather_from_all(rank: int, size: int, nbytes: int) -> None:
    rounds = 20
    if rank != 0:
        for i in range(rounds):
            dist.send(pattern(nbytes, 40 * rank + i), 0, tag=2)
        return
    seen = dict.fromkeys(range(1, size), 0)
    for _ in range(rounds * (size - 1)):
        received = blank(nbytes)
        source = dist.recv(received, tag=2)
        expect_pattern(received, 40 * source + seen[source], f"from {source}")
        seen[source] += 1
    assert set(seen.values()) == {rounds}


@all_routes
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_recv_without_source_returns_the_senders_rank(
    env: dict[str, str], nbytes: int, size: int
) -> None:
    run_world(_gather_from_all, size, nbytes, env=env)


def _source_rank(rank: int, size: int) -> None:
    if rank == 0:
        received = {i: blank(50) for i in range(size - 1)}
        works = [dist.irecv(t, tag=5) for t in received.values()]
        tell("posted")
        sources = []
        for i, work in enumerate(works):
            work.wait()
            sources.append(work._source_rank())
            expect_pattern(received[i], sources[-1])
        assert sorted(sources) == list(range(1, size))
    else:
        await_key("posted")
        dist.send(pattern(50, rank), 0, tag=5)


@all_routes
def test_source_rank_of_posted_receives(env: dict[str, str]) -> None:
    run_world(_source_rank, 4, env=env)


def _directed_source_rank(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.irecv(blank(10), 1)
        work.wait()
        assert work._source_rank() == 1
    else:
        dist.send(pattern(10), 0)


@all_routes
def test_source_rank_of_a_directed_receive(env: dict[str, str]) -> None:
    run_world(_directed_source_rank, 2, env=env)


def _global_rank_from_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([3, 1])
    if rank == 3:
        dist.send(pattern(20, 3), 1, group=group)
    elif rank == 1:
        received = blank(20)
        assert dist.recv(received, group=group) == 3
        expect_pattern(received, 3)


@all_routes
def test_subgroup_receive_returns_the_global_rank(env: dict[str, str]) -> None:
    run_world(_global_rank_from_subgroup, 4, env=env)


def _mixed_with_directed(rank: int, size: int, nbytes: int) -> None:
    """Directed receives posted first get their source's first messages, the others the rest."""
    if rank != 0:
        for i in range(4):
            dist.isend(pattern(nbytes, 10 * rank + i), 0, tag=7).wait()
        return
    directed = [(s, i) for i in range(2) for s in (2, 1)]
    buffers = {key: blank(nbytes) for key in directed}
    works = [dist.irecv(buffers[s, i], s, tag=7) for s, i in directed]
    free = [blank(nbytes) for _ in range(4)]
    free_works = [dist.irecv(t, tag=7) for t in free]
    tell("posted")
    for work in works + free_works:
        work.wait()
    for source, i in directed:
        expect_pattern(buffers[source, i], 10 * source + i, f"directed {i} from {source}")
    following = {1: 2, 2: 2}
    for tensor, work in zip(free, free_works, strict=True):
        source = work._source_rank()
        expect_pattern(tensor, 10 * source + following[source], f"free from {source}")
        following[source] += 1


@dlslime_only
@all_routes
@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_any_source_after_directed_receives_on_one_tag(env: dict[str, str], nbytes: int) -> None:
    run_world(_mixed_with_directed, 3, nbytes, env=env)


def _any_source_posted_first(rank: int, size: int, nbytes: int) -> None:
    if rank == 1:
        await_key("posted")
        for i in range(3):
            dist.send(pattern(nbytes, i), 0, tag=7)
    elif rank == 0:
        buffers = [blank(nbytes) for _ in range(3)]
        works = [
            dist.irecv(buffers[0], tag=7),
            dist.irecv(buffers[1], 1, tag=7),
            dist.irecv(buffers[2], tag=7),
        ]
        tell("posted")
        for i, work in enumerate(works):
            work.wait()
            expect_pattern(buffers[i], i, f"receive {i}")


@dlslime_only
@all_routes
@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_any_source_before_a_directed_receive_keeps_the_order(
    env: dict[str, str], nbytes: int
) -> None:
    run_world(_any_source_posted_first, 2, nbytes, env=env)


def _other_tags_untouched(rank: int, size: int) -> None:
    if rank == 0:
        free, directed = blank(LARGE), blank(LARGE)
        first = dist.irecv(free, tag=1)
        second = dist.irecv(directed, 1, tag=2)
        tell("posted")
        second.wait()  # the message of the second receive comes first
        expect_pattern(directed, 2)
        first.wait()
        expect_pattern(free, 1)
    else:
        await_key("posted")
        dist.send(pattern(LARGE, 2), 0, tag=2)
        dist.send(pattern(LARGE, 1), 0, tag=1)


@all_routes
def test_waiting_any_source_receive_holds_up_no_other_tag(env: dict[str, str]) -> None:
    run_world(_other_tags_untouched, 2, env=env)


def _unexpected_any(rank: int, size: int) -> None:
    if rank != 0:
        works = [dist.isend(pattern(30, 40 * rank + i), 0, tag=i) for i in range(20)]
        tell(f"sent{rank}")
        for work in works:
            work.wait()
        return
    for other in range(1, size):
        await_key(f"sent{other}")
    for tag in reversed(range(20)):
        sources = set()
        for _ in range(1, size):
            received = blank(30)
            source = dist.recv(received, tag=tag)
            expect_pattern(received, 40 * source + tag)
            sources.add(source)
        assert sources == set(range(1, size))


@all_routes
def test_any_source_takes_messages_that_came_before_it(env: dict[str, str]) -> None:
    run_world(_unexpected_any, 3, env=env)


def _from_myself(rank: int, size: int) -> None:
    received = blank(100)
    work = dist.irecv(received, tag=1)
    dist.isend(pattern(100, rank), rank, tag=1).wait()
    work.wait()
    assert work._source_rank() == rank
    expect_pattern(received, rank)


@dlslime_only
@all_routes
def test_any_source_matches_a_send_to_oneself(env: dict[str, str]) -> None:
    run_world(_from_myself, 2, env=env)


def _mixed_routes(rank: int, size: int, nbytes: int) -> None:
    _gather_from_all(rank, size, nbytes)
    if rank != 0:
        tensor = torch.tensor([rank])
        dist.recv(tensor, 0)
        assert int(tensor) == 100 + rank
    else:
        for other in range(1, size):
            dist.send(torch.tensor([100 + other]), other)


@dlslime_only
@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_any_source_across_routes(nbytes: int) -> None:
    """Rank 2 reaches the others over TCP only, the others each other through memory."""
    allow = {"DLSLIME_FALLBACK": "allow"}
    env = [allow, allow, {**allow, "DLSLIME_SHM": "off"}]
    run_world(_mixed_routes, 3, nbytes, env=env)
