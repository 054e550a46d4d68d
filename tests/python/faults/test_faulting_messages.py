"""Messages between memory that can't be accessed fail, and the next messages come."""

import contextlib

import pytest
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from mapped_pages import UNREADABLE, UNWRITABLE, Pages, expect_fault, faulting, read_only
from patterns import blank, expect_pattern, pattern
from test_groups import exchange

pytestmark = dlslime_only

# Eager; streamed if both ends are awake; copied by both ends.
SIZES = [1000, 60_000, 400_000, 3 << 20]
EAGER = 65_536
FAILED = dist.DistBackendError


def _send_from(rank: int, size: int, nbytes: int, posted: str) -> None:
    """Rank 0 sends unreadable memory: the message fails at both ends, the next message comes."""
    for tag, kind in enumerate(UNREADABLE):
        if rank == 0:
            pages = Pages(nbytes)
            pages.memory.copy_(pattern(nbytes, 0))
            if posted == "before":
                await_key(f"posted {kind}")
            with faulting(pages, kind, at_end=True), pytest.raises(FAILED) as caught:
                dist.isend(pages.memory, 1, tag=tag).wait()
            expect_fault(str(caught.value), "this process's memory", False, kind)
            tell(f"failed {kind}")
            pages.memory.copy_(pattern(nbytes, 5))
            dist.send(pages.memory, 1, tag=tag)
            continue
        received = blank(nbytes)
        if posted == "after" and nbytes < EAGER:
            await_key(f"failed {kind}")
        work = dist.irecv(received, 0, tag=tag)
        tell(f"posted {kind}")
        with pytest.raises(FAILED, match="rank 0"):
            work.wait()
        dist.recv(received, 0, tag=tag)
        expect_pattern(received, 5, "the next message")
    sync("told")
    exchange(None, 3, 300_000)


@all_routes
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_send_of_faulting_memory_fails_at_both_ends(
    env: dict[str, str], nbytes: int, posted: str
) -> None:
    run_world(_send_from, 2, nbytes, posted, env=env)


def _receive_into(rank: int, size: int, nbytes: int, posted: str) -> None:
    """Rank 1 receives into unwritable memory: the receive fails, the next receive is served."""
    for tag, kind in enumerate(UNWRITABLE):
        if rank == 0:
            if posted == "before":
                await_key(f"posted {kind}")
            work = dist.isend(pattern(nbytes, 1), 1, tag=tag)
            tell(f"sent {kind}")
            if nbytes < EAGER:
                work.wait()  # the message has left, whatever happens at the receiver
            else:
                with pytest.raises(FAILED, match="rank 1"):
                    work.wait()
            dist.send(pattern(nbytes, 2), 1, tag=tag)
            continue
        pages = Pages(nbytes)
        if posted == "after":
            await_key(f"sent {kind}")
        with faulting(pages, kind, at_end=True):
            work = dist.irecv(pages.memory, 0, tag=tag)
            tell(f"posted {kind}")
            with pytest.raises(FAILED) as caught:
                work.wait()
        expect_fault(str(caught.value), "this process's memory", True, kind)
        dist.recv(pages.memory, 0, tag=tag)
        expect_pattern(pages.memory, 2, "the next message")
    sync("told")
    exchange(None, 3, 300_000)


@all_routes
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_receive_into_faulting_memory_fails_alone(
    env: dict[str, str], nbytes: int, posted: str
) -> None:
    run_world(_receive_into, 2, nbytes, posted, env=env)


def _from_any(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        work = dist.isend(pattern(nbytes, 1), 1)
        with contextlib.suppress(FAILED):
            work.wait()
        dist.send(pattern(nbytes, 2), 1)
    else:
        pages = Pages(nbytes)
        with faulting(pages, "read_only"), pytest.raises(FAILED) as caught:
            dist.recv(pages.memory)
        expect_fault(str(caught.value), "this process's memory", True, "read_only")
        assert dist.recv(pages.memory) == 0
        expect_pattern(pages.memory, 2)


@all_routes
@pytest.mark.parametrize("nbytes", [1000, 3 << 20])
def test_receive_from_any_source_into_faulting_memory(env: dict[str, str], nbytes: int) -> None:
    run_world(_from_any, 2, nbytes, env=env)


def _to_itself(rank: int, size: int, nbytes: int, sends: bool) -> None:
    good, bad = pattern(nbytes, 2), Pages(nbytes)
    into, out_of = (good, bad.memory) if sends else (bad.memory, good)
    kind = "cut" if sends else "read_only"
    with faulting(bad, kind, at_end=True):
        receive = dist.irecv(into, rank)
        with contextlib.suppress(FAILED):
            dist.isend(out_of, rank).wait()
        with pytest.raises(FAILED):
            receive.wait()
    received = blank(nbytes)
    receive = dist.irecv(received, rank)
    dist.isend(pattern(nbytes, 6), rank).wait()
    receive.wait()
    expect_pattern(received, 6)


@pytest.mark.parametrize("sends", [False, True], ids=["receive", "send"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_messages_to_oneself_with_faulting_memory(nbytes: int, sends: bool) -> None:
    run_world(_to_itself, 1, nbytes, sends)


def _sent_from_read_only(rank: int, size: int, nbytes: int) -> None:
    """Memory that is only read may be read-only: of a send, and the source of a write."""
    pages = Pages(nbytes)
    pages.memory.copy_(pattern(nbytes, rank))
    received = blank(nbytes)
    with read_only(pages.memory):
        work = dist.irecv(received, 1 - rank)
        dist.send(pages.memory, 1 - rank)
        work.wait()
    expect_pattern(received, 1 - rank)


@all_routes
@pytest.mark.parametrize("nbytes", SIZES)
def test_read_only_memory_can_be_sent(env: dict[str, str], nbytes: int) -> None:
    run_world(_sent_from_read_only, 2, nbytes, env=env)
