"""Matching: first in, first out per group, source and tag; tags never wait for each other."""

import random

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect_pattern, pattern

WIDE_TAGS = [0, 1, 0xFFFF, 0x10000, 0xFFFFFF, 0x50704772, 0x50704869, 0x50704273, 0x7FFFFFFF]


def _one_tag_in_order(rank: int, size: int, count: int) -> None:
    if rank == 0:
        works = [dist.isend(torch.tensor([i]), 1, tag=9) for i in range(count)]
    else:
        received = [torch.tensor([-1]) for _ in range(count)]
        works = [dist.irecv(t, 0, tag=9) for t in received]
    for work in works:
        work.wait()
    if rank == 1:
        assert [int(t) for t in received] == list(range(count))


@all_routes
def test_one_tag_is_first_in_first_out(env: dict[str, str]) -> None:
    run_world(_one_tag_in_order, 2, 500, env=env)


def _mixed_sizes_in_order(rank: int, size: int) -> None:
    sizes = [1, 2_000_000, 8, 0, 70_000, 3, 500_000, 16, 9000, 1] * 3
    if rank == 0:
        works = [dist.isend(pattern(n, i), 1, tag=4) for i, n in enumerate(sizes)]
        for work in works:
            work.wait()
    else:
        for i, n in enumerate(sizes):
            received = blank(n)
            dist.recv(received, 0, tag=4)
            expect_pattern(received, i, f"message {i} of {n} bytes")


@all_routes
def test_small_messages_do_not_overtake_large_ones_of_their_tag(env: dict[str, str]) -> None:
    run_world(_mixed_sizes_in_order, 2, env=env)


def _tags_out_of_order(rank: int, size: int, nbytes: int, receive_first: bool) -> None:
    tags = WIDE_TAGS
    if rank == 0:
        if receive_first:
            await_key("posted")
        works = [dist.isend(pattern(nbytes, i), 1, tag=tag) for i, tag in enumerate(tags)]
        tell("sent")
    else:
        if not receive_first:
            await_key("sent")
        received = [blank(nbytes) for _ in tags]
        order = list(enumerate(tags))
        random.Random(nbytes).shuffle(order)
        works = [dist.irecv(received[i], 0, tag=tag) for i, tag in order]
        tell("posted")
    for work in works:
        work.wait()
    if rank == 1:
        for i, tensor in enumerate(received):
            expect_pattern(tensor, i, f"tag {tags[i]:#x}")


@all_routes
@pytest.mark.parametrize("receive_first", [True, False])
@pytest.mark.parametrize("nbytes", [8, 300_000])
def test_wide_tags_in_any_order_of_posting(
    env: dict[str, str], nbytes: int, receive_first: bool
) -> None:
    run_world(_tags_out_of_order, 2, nbytes, receive_first, env=env)


def _last_tag_first(rank: int, size: int) -> None:
    """Each receive ends before the next is posted: no receive may wait for a lower tag."""
    if rank == 0:
        works = [dist.isend(pattern(200_000, tag), 1, tag=tag) for tag in range(20)]
        for work in works:
            work.wait()
    else:
        for tag in reversed(range(20)):
            received = blank(200_000)
            dist.recv(received, 0, tag=tag)
            expect_pattern(received, tag)


@all_routes
def test_tags_overtake_each_other_with_blocking_receives(env: dict[str, str]) -> None:
    run_world(_last_tag_first, 2, env=env)


def _thousands_unexpected(rank: int, size: int, nbytes: int) -> None:
    count = 2500
    if rank == 0:
        works = [dist.isend(pattern(nbytes, i), 1, tag=i % 50) for i in range(count)]
        tell("sent")
        for work in works:
            work.wait()
    else:
        await_key("sent")
        received = [blank(nbytes) for _ in range(count)]
        order = sorted(range(count), key=lambda i: (-(i % 50), i))
        for i in order:
            dist.recv(received[i], 0, tag=i % 50)
        for i in range(count):
            expect_pattern(received[i], i, f"message {i}")


@all_routes
@pytest.mark.parametrize("nbytes", [16, 20_000])
def test_thousands_of_unexpected_messages(env: dict[str, str], nbytes: int) -> None:
    run_world(_thousands_unexpected, 2, nbytes, env=env)


def _thousands_posted(rank: int, size: int, nbytes: int) -> None:
    count = 2500
    if rank == 1:
        received = [blank(nbytes) for _ in range(count)]
        order = sorted(range(count), key=lambda i: (-(i % 50), i))
        works = [dist.irecv(received[i], 0, tag=i % 50) for i in order]
        tell("posted")
        for work in works:
            work.wait()
        for i in range(count):
            expect_pattern(received[i], i, f"message {i}")
    else:
        await_key("posted")
        works = [dist.isend(pattern(nbytes, i), 1, tag=i % 50) for i in range(count)]
        for work in works:
            work.wait()


@all_routes
@pytest.mark.parametrize("nbytes", [16, 20_000])
def test_thousands_of_receives_posted_ahead(env: dict[str, str], nbytes: int) -> None:
    run_world(_thousands_posted, 2, nbytes, env=env)


def _same_tag_from_all(rank: int, size: int) -> None:
    count = 30
    if rank != 0:
        works = [dist.isend(pattern(64, 50 * rank + i), 0, tag=1) for i in range(count)]
        for work in works:
            work.wait()
        return
    received = {(s, i): blank(64) for i in range(count) for s in range(1, size)}
    for work in [dist.irecv(t, s, tag=1) for (s, _), t in received.items()]:
        work.wait()
    for (source, i), tensor in received.items():
        expect_pattern(tensor, 50 * source + i, f"message {i} from {source}")


@all_routes
@pytest.mark.parametrize("size", [3, 4])
def test_sources_with_one_tag_are_kept_apart(env: dict[str, str], size: int) -> None:
    run_world(_same_tag_from_all, size, env=env)


def _both_ways_at_once(rank: int, size: int) -> None:
    other, count = 1 - rank, 300
    received = [blank(100) for _ in range(count)]
    works = []
    for i in range(count):
        works.append(dist.isend(pattern(100, i + rank), other, tag=i % 3))
        works.append(dist.irecv(received[i], other, tag=i % 3))
    for work in works:
        work.wait()
    for i, tensor in enumerate(received):
        expect_pattern(tensor, i + other)


@all_routes
def test_directions_of_a_pair_are_independent(env: dict[str, str]) -> None:
    run_world(_both_ways_at_once, 2, env=env)


def _slow_receiver_does_not_block_others(rank: int, size: int) -> None:
    """Rank 1 receives nothing from rank 0 until rank 2 has received all its messages."""
    if rank == 0:
        stuck = [dist.isend(pattern(100_000, i), 1) for i in range(50)]
        for i in range(50):
            dist.send(pattern(100_000, i), 2)
        tell("rank 2 is served")
        for work in stuck:
            work.wait()
        return
    if rank == 1:
        await_key("rank 2 is served")
    for i in range(50):
        received = blank(100_000)
        dist.recv(received, 0)
        expect_pattern(received, i)


@all_routes
def test_peer_that_does_not_receive_holds_up_no_other_peer(env: dict[str, str]) -> None:
    run_world(_slow_receiver_does_not_block_others, 3, env=env)


def _full_of_unexpected(rank: int, size: int) -> None:
    """Tag 0 has more unexpected bytes than any ring holds; tag 1 is received first."""
    count = 1000
    if rank == 0:
        works = [dist.isend(pattern(4096, i), 1, tag=0) for i in range(count)]
        works.append(dist.isend(pattern(10, 77), 1, tag=1))
        for work in works:
            work.wait()
    else:
        urgent = blank(10)
        dist.recv(urgent, 0, tag=1)
        expect_pattern(urgent, 77)
        for i in range(count):
            received = blank(4096)
            dist.recv(received, 0, tag=0)
            expect_pattern(received, i)


@all_routes
def test_tag_behind_megabytes_of_unexpected_messages_is_reached(env: dict[str, str]) -> None:
    run_world(_full_of_unexpected, 2, env=env)


def _late_receiver(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.isend(pattern(1_000_000, 1), 1)
        sync("sent")
        assert not work.is_completed()
        tell("go")
        work.wait()
    else:
        sync("sent")
        await_key("go")
        received = blank(1_000_000)
        dist.recv(received, 0)
        expect_pattern(received, 1)


@dlslime_only
@all_routes
def test_large_send_is_not_complete_before_its_receive(env: dict[str, str]) -> None:
    run_world(_late_receiver, 2, env=env)
