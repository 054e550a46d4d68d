"""Bad arguments raise at the call and queue nothing; messages that do not fit fail alone."""

import re

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect, expect_pattern, pattern
from test_groups import exchange

pytestmark = dlslime_only  # Gloo ends the process on some of the arguments

CPU = torch.device("cpu")
REFUSED = (ValueError, RuntimeError, NotImplementedError)


def _bad_ranks(rank: int, size: int) -> None:
    for bad in (size, size + 7, -1, 1 << 30):
        with pytest.raises(REFUSED, match="(?i)rank"):
            dist.isend(torch.ones(1), bad)
        with pytest.raises(REFUSED, match="(?i)rank"):
            dist.irecv(torch.ones(1), bad)
        with pytest.raises(REFUSED, match="(?i)rank"):
            dist.group.WORLD.send([torch.ones(1)], bad, 0)
    exchange(None)


@all_routes
def test_rank_out_of_range_is_refused_at_the_call(env: dict[str, str]) -> None:
    run_world(_bad_ranks, 2, env=env)


def _bad_ranks_of_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([0, 2])
    if rank != 1:
        with pytest.raises(REFUSED, match="(?i)rank"):
            dist.isend(torch.ones(1), 1, group=group)
        with pytest.raises(REFUSED, match="(?i)rank"):
            dist.isend(torch.ones(1), group_dst=2, group=group)
        with pytest.raises(REFUSED, match="(?i)rank"):
            dist.irecv(torch.ones(1), group_src=2, group=group)
        exchange(group)


@all_routes
def test_rank_outside_a_subgroup_is_refused(env: dict[str, str]) -> None:
    run_world(_bad_ranks_of_subgroup, 3, env=env)


def _negative_tags(rank: int, size: int) -> None:
    other = 1 - rank
    for bad in (-1, -(1 << 31)):
        with pytest.raises(REFUSED, match="(?i)tag"):
            dist.isend(torch.ones(1), other, tag=bad)
        with pytest.raises(REFUSED, match="(?i)tag"):
            dist.irecv(torch.ones(1), other, tag=bad)
        with pytest.raises(REFUSED, match="(?i)tag"):
            dist.irecv(torch.ones(1), tag=bad)
    exchange(None)


@all_routes
def test_negative_tag_is_refused_at_the_call(env: dict[str, str]) -> None:
    run_world(_negative_tags, 2, env=env)


def _bad_layouts(rank: int, size: int) -> None:
    other = 1 - rank
    bad = {
        "contiguous": torch.ones(4, 6).t(),
        "contiguous|stride": torch.ones(10)[::2],
        "contiguous|expand|stride": torch.ones(1).expand(5),
        "sparse|layout": torch.eye(3).to_sparse(),
        "sparse|layout|contiguous": torch.eye(3).to_sparse_csr(),
    }
    for text, tensor in bad.items():
        for operation in (dist.isend, dist.irecv):
            with pytest.raises(REFUSED, match=f"(?i){text}"):
                operation(tensor, other)
        with pytest.raises(REFUSED, match=f"(?i){text}"):
            dist.irecv(tensor)
    exchange(None)


@all_routes
def test_non_contiguous_and_sparse_tensors_are_refused(env: dict[str, str]) -> None:
    run_world(_bad_layouts, 2, env=env)


def _lists_of_tensors(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    for tensors in ([], [torch.ones(1), torch.ones(1)]):
        with pytest.raises(REFUSED, match="(?i)tensor"):
            backend.send(tensors, 1 - rank, 0)
        with pytest.raises(REFUSED, match="(?i)tensor"):
            backend.recv(tensors, 1 - rank, 0)
        with pytest.raises(REFUSED, match="(?i)tensor"):
            backend.recv_anysource(tensors, 0)
    exchange(None)


def test_none_or_two_tensors_in_one_call_are_refused() -> None:
    run_world(_lists_of_tensors, 2)


def _wrong_device(rank: int, size: int) -> None:
    meta = torch.ones(3, device="meta")
    backend = dist.group.WORLD._get_backend(CPU)
    with pytest.raises(REFUSED, match="(?i)meta|device"):
        backend.send([meta], 1 - rank, 0)
    with pytest.raises(REFUSED, match="(?i)meta|device"):
        backend.recv([meta], 1 - rank, 0)
    exchange(None)


def test_tensor_of_another_device_is_refused() -> None:
    run_world(_wrong_device, 2)


def _nothing_was_queued(rank: int, size: int) -> None:
    """The n-th send still meets the n-th receive after refused calls at both ends."""
    other = 1 - rank
    works, received = [], [blank(64) for _ in range(5)]
    for i in range(5):
        with pytest.raises(REFUSED):
            dist.isend(torch.ones(4, 4).t(), other, tag=3)
        works.append(dist.isend(pattern(64, i + rank), other, tag=3))
        with pytest.raises(REFUSED):
            dist.irecv(torch.ones(4, 4).t(), other, tag=3)
        works.append(dist.irecv(received[i], other, tag=3))
    for work in works:
        work.wait()
    for i, tensor in enumerate(received):
        expect_pattern(tensor, i + other)


@all_routes
def test_refused_call_takes_no_place_in_the_order(env: dict[str, str]) -> None:
    run_world(_nothing_was_queued, 2, env=env)


TOO_LONG = [(1, 0), (9, 8), (5000, 10), (200_000, 8), (200_000, 199_999), (8 << 20, 1 << 20)]


def _too_long(rank: int, size: int, sent: int, room: int, posted: str) -> None:
    if rank == 0:
        if posted == "before":
            await_key("posted")
        work = dist.isend(pattern(sent, 1), 1, tag=2)
        tell("sent")
        after = dist.isend(pattern(room, 2), 1, tag=2)
        if sent < 100_000:  # an eager send fails only once the peer has answered
            dist.recv(blank(1), 1, tag=3)
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait()
        _expect_both_sizes(str(caught.value), sent, room)
        assert work.exception() is not None
        after.wait()
    else:
        if posted == "after":
            await_key("sent")
        frame = blank(room + 200)
        work = dist.irecv(frame[100 : 100 + room], 0, tag=2)
        tell("posted")
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait()
        _expect_both_sizes(str(caught.value), sent, room)
        if sent < 100_000:
            dist.send(blank(1), 0, tag=3)
        expect(frame[:100], blank(100), "before the tensor")
        expect(frame[100 + room :], blank(100), "past the tensor's end")
        received = blank(room)
        dist.recv(received, 0, tag=2)
        expect_pattern(received, 2, "the next message")
    sync("told")
    exchange(None, 3, 300_000)


def _expect_both_sizes(text: str, sent: int, room: int) -> None:
    numbers = re.findall(r"\d+", text)
    assert str(sent) in numbers, text
    assert str(room) in numbers, text


@all_routes
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize(("sent", "room"), TOO_LONG)
def test_message_longer_than_the_tensor_fails_alone_at_both_ends(
    env: dict[str, str], sent: int, room: int, posted: str
) -> None:
    run_world(_too_long, 2, sent, room, posted, env=env)


def _too_long_for_any_source(rank: int, size: int, sent: int) -> None:
    if rank == 0:
        work = dist.isend(pattern(sent, 1), 1)
        if sent > 100_000:
            with pytest.raises(dist.DistBackendError, match=str(sent)):
                work.wait()
    else:
        with pytest.raises(dist.DistBackendError, match=str(sent)):
            dist.recv(blank(10))
    sync("told")
    exchange(None)


@all_routes
@pytest.mark.parametrize("sent", [100, 300_000])
def test_message_too_long_for_a_receive_from_any_source(env: dict[str, str], sent: int) -> None:
    run_world(_too_long_for_any_source, 2, sent, env=env)


def _too_long_to_myself(rank: int, size: int, sent: int) -> None:
    send = dist.isend(pattern(sent), rank)
    receive = dist.irecv(blank(10), rank)
    with pytest.raises(dist.DistBackendError) as caught:
        receive.wait()
    _expect_both_sizes(str(caught.value), sent, 10)
    if sent > 100_000:
        with pytest.raises(dist.DistBackendError, match=str(sent)):
            send.wait()
    exchange(None)


@all_routes
@pytest.mark.parametrize("sent", [100, 300_000])
def test_message_to_oneself_too_long_fails_at_both_ends(env: dict[str, str], sent: int) -> None:
    run_world(_too_long_to_myself, 2, sent, env=env)


SHORTER = [(0, 10), (1, 2), (5, 4096), (20_000, 20_001), (300_000, 4 << 20)]


def _shorter(rank: int, size: int, sent: int, room: int, posted: str) -> None:
    if rank == 0:
        if posted == "before":
            await_key("posted")
        dist.isend(pattern(sent, 1), 1).wait()
        tell("sent")
        dist.send(pattern(room, 2), 1)
    else:
        if posted == "after" and sent < 8192:
            await_key("sent")
        received = blank(room)
        work = dist.irecv(received, 0)
        tell("posted")
        work.wait()
        expect_pattern(received[:sent], 1)
        expect(received[sent:], blank(room - sent), "behind the message")
        dist.recv(received, 0)
        expect_pattern(received, 2)


@all_routes
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize(("sent", "room"), SHORTER)
def test_shorter_message_fills_the_front(
    env: dict[str, str], sent: int, room: int, posted: str
) -> None:
    run_world(_shorter, 2, sent, room, posted, env=env)


def _bad_options(rank: int, size: int) -> None:
    import dlslime_backend

    for bad in ({"route": "carrier pigeon"}, {"fallback": "maybe"}, {"timeout": "soon"}):
        with pytest.raises((ValueError, TypeError)):
            dlslime_backend.Options(**bad)


def test_unknown_values_of_options_are_refused() -> None:
    run_world(_bad_options, 1)
