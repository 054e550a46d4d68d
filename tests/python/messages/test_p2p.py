"""send, recv, isend and irecv between ranks, in every order of posting."""

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect_pattern, pattern

LARGE = 3 << 20  # beyond any eager limit


def _ring(rank: int, size: int, nbytes: int) -> None:
    data, received = pattern(nbytes, rank), blank(nbytes)
    source = (rank - 1) % size
    if rank % 2 == 0:
        dist.send(data, (rank + 1) % size)
        assert dist.recv(received, source) == source
    else:
        assert dist.recv(received, source) == source
        dist.send(data, (rank + 1) % size)
    expect_pattern(received, source)


@all_routes
@pytest.mark.parametrize("size", [2, 4, 8])
def test_blocking_ring_delivers(env: dict[str, str], size: int) -> None:
    run_world(_ring, size, 1000, env=env)


@all_routes
def test_blocking_ring_delivers_large_messages(env: dict[str, str]) -> None:
    run_world(_ring, 4, LARGE, env=env)


def _all_pairs(rank: int, size: int, nbytes: int) -> None:
    others = [r for r in range(size) if r != rank]
    received = {r: blank(nbytes) for r in others}
    works = [dist.irecv(received[r], r) for r in others]
    works += [dist.isend(pattern(nbytes, 10 * rank + r), r) for r in others]
    for work in works:
        work.wait()
    for r in others:
        expect_pattern(received[r], 10 * r + rank, f"{r} -> {rank}")


@all_routes
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_pair_exchanges_both_ways_at_once(env: dict[str, str], size: int) -> None:
    run_world(_all_pairs, size, 100, env=env)


@all_routes
@pytest.mark.parametrize("size", [2, 3])
def test_every_pair_exchanges_large_messages_at_once(env: dict[str, str], size: int) -> None:
    run_world(_all_pairs, size, LARGE, env=env)


def _recv_first(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        received = blank(nbytes)
        work = dist.irecv(received, 1)
        tell("posted")
        work.wait()
        expect_pattern(received, 5)
    else:
        await_key("posted")
        dist.send(pattern(nbytes, 5), 0)


@all_routes
@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_receive_posted_before_the_send(env: dict[str, str], nbytes: int) -> None:
    run_world(_recv_first, 2, nbytes, env=env)


def _send_first(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        work = dist.isend(pattern(nbytes, 5), 1)
        tell("posted")
        work.wait()
    else:
        await_key("posted")
        received = blank(nbytes)
        dist.recv(received, 0)
        expect_pattern(received, 5)


@all_routes
@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_send_posted_before_the_receive(env: dict[str, str], nbytes: int) -> None:
    run_world(_send_first, 2, nbytes, env=env)


def _sends_before_receives(rank: int, size: int) -> None:
    other = 1 - rank
    for i in range(100):
        dist.send(pattern(64, i + rank), other)  # no receive is posted yet
    sync("sent")
    for i in range(100):
        received = blank(64)
        dist.recv(received, other)
        expect_pattern(received, i + other)


@dlslime_only
@all_routes
def test_small_blocking_sends_return_without_the_receiver(env: dict[str, str]) -> None:
    run_world(_sends_before_receives, 2, env=env)


def _reuse_after_wait(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        data = pattern(nbytes, 1)
        dist.isend(data, 1).wait()
        data.fill_(0)  # the receiver must not see the zeros
        tell("overwritten")
        dist.isend(pattern(nbytes, 2), 1).wait()
    else:
        first, second = blank(nbytes), blank(nbytes)
        if nbytes < LARGE:
            await_key("overwritten")
        dist.recv(first, 0)
        dist.recv(second, 0)
        expect_pattern(first, 1)
        expect_pattern(second, 2)


@dlslime_only
@all_routes
@pytest.mark.parametrize("nbytes", [8, 4096, LARGE])
def test_buffer_may_be_overwritten_after_the_sends_wait(env: dict[str, str], nbytes: int) -> None:
    run_world(_reuse_after_wait, 2, nbytes, env=env)


def _ping_pong(rank: int, size: int, rounds: int) -> None:
    tensor = torch.zeros(4, dtype=torch.int64)
    for i in range(rounds):
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            tensor += 1
            dist.send(tensor, 0)
        assert tensor.tolist() == [i + 1] * 4


@all_routes
def test_long_ping_pong_keeps_its_values(env: dict[str, str]) -> None:
    run_world(_ping_pong, 2, 1000, env=env)


def _group_ranks(rank: int, size: int) -> None:
    data, received = pattern(100, rank), blank(100)
    other = 1 - rank
    send = dist.isend(data, group_dst=other)
    assert dist.recv(received, group_src=other) == other
    send.wait()
    expect_pattern(received, other)


@all_routes
def test_group_dst_and_group_src_name_ranks(env: dict[str, str]) -> None:
    run_world(_group_ranks, 2, env=env)


def _to_myself(rank: int, size: int, nbytes: int, send_first: bool) -> None:
    data, received = pattern(nbytes, rank), blank(nbytes)
    if send_first:
        send = dist.isend(data, rank, tag=3)
        receive = dist.irecv(received, rank, tag=3)
    else:
        receive = dist.irecv(received, rank, tag=3)
        send = dist.isend(data, rank, tag=3)
    receive.wait()
    send.wait()
    expect_pattern(received, rank)


@dlslime_only
@all_routes
@pytest.mark.parametrize("send_first", [True, False])
@pytest.mark.parametrize("nbytes", [0, 8, LARGE])
def test_isend_and_irecv_to_oneself(env: dict[str, str], nbytes: int, send_first: bool) -> None:
    run_world(_to_myself, 2, nbytes, send_first, env=env)


def _alone(rank: int, size: int) -> None:
    received = blank(10)
    works = [dist.irecv(received, 0), dist.isend(pattern(10, 1), 0)]
    for work in works:
        work.wait()
    expect_pattern(received, 1)
    dist.barrier()


@dlslime_only
def test_world_of_one_rank_sends_to_itself() -> None:
    run_world(_alone, 1)


def _blocking_send_to_myself(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="destination"):
        dist.send(torch.ones(1), rank)


def test_blocking_send_to_oneself_is_refused() -> None:
    run_world(_blocking_send_to_myself, 2)
