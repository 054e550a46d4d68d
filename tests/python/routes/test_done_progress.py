"""A caller that polls, awaits or gets a callback is served as well as a waiting caller.

A poll without success must let the peer run, if the peer shares the core: polling may not take much
longer than polling with a yield after each poll.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from dlslime_backend.compat import dlslime as upstream
from dlslime_backend.compat.nixl import nixl_agent
from ending import SOON
from harness import await_key, dlslime_only, init_group, run_world, sync, tell
from patterns import blank, expect_pattern, pattern
from test_one_sided import Side, side_of, swap

pytestmark = [dlslime_only, pytest.mark.alone]

ROUNDS = 60
STAGED = {"DLSLIME_CMA": "off"}  # reads come as messages, which the peer has to send
TCP = {"DLSLIME_ROUTE": "tcp"}
GLOO = {"DLSLIME_ROUTE": "gloo"}
# Limit for polling without yields, as a multiple and in hops from thread to thread.
MOST_WAITS = 8
HOPS = 300e-6


def _asked_for(done: Callable[[], bool], lets: bool) -> float:
    """Poll until done, and return the seconds; with `lets`, other threads run after each poll."""
    begun = time.perf_counter()
    while not done():
        if lets:
            os.sched_yield()
    return time.perf_counter() - begun


def _medians_of(begin: Callable[[int], Callable[[], bool]]) -> tuple[float, float]:
    """Return the median times of polling without and with yields, measured in turns."""
    times: list[list[float]] = [[], []]
    for number in range(2 * ROUNDS):
        times[number % 2].append(_asked_for(begin(number), lets=number % 2 == 1))
    return statistics.median(times[0]), statistics.median(times[1])


def _reads(rank: int) -> tuple[float, float]:
    side = side_of(rank, 1000)
    medians = 0.0, 0.0
    if rank == 0:
        side.read().wait()
        medians = _medians_of(lambda _: side.read().done)
        expect_pattern(side.memory, 1)
    sync("read")
    return medians


def _messages(rank: int) -> tuple[float, float]:
    """An echo, as works of torch."""
    message = blank(1000)

    def begin(number: int) -> Callable[[], bool]:
        dist.send(pattern(1000, number), 1)
        work = dist.irecv(message, 1)
        assert work is not None
        return work.is_completed

    if rank == 0:
        medians = _medians_of(begin)
        expect_pattern(message, 2 * ROUNDS - 1)
        return medians
    for _ in range(2 * ROUNDS):
        dist.recv(message, 0)
        dist.send(message, 0)
    return 0.0, 0.0


def _immediates(rank: int) -> tuple[float, float]:
    side = side_of(rank, 1000)

    def begin(number: int) -> Callable[[], bool]:
        side.peer.write_with_imm(side.region, side.remote, imm=number).wait()
        return side.peer.expect_imm().done

    if rank == 0:
        return _medians_of(begin)
    for number in range(2 * ROUNDS):
        assert side.peer.expect_imm().wait() == number
        side.peer.write_with_imm(side.region, side.remote, imm=number).wait()
    return 0.0, 0.0


def _nixl(rank: int) -> tuple[float, float]:
    agent, memory = nixl_agent(f"agent {rank}"), pattern(1000, rank)
    agent.register_memory(memory)
    theirs = swap("metadata", agent.get_agent_metadata(), 1 - rank)
    address = int(swap("address", str(memory.data_ptr()).encode(), 1 - rank))
    medians = 0.0, 0.0
    if rank == 0:
        agent.add_remote_agent(theirs)
        here = agent.get_xfer_descs([(memory.data_ptr(), 1000, 0)], "DRAM")
        there = agent.get_xfer_descs([(address, 1000, 0)], "DRAM")
        assert here is not None
        assert there is not None
        handle = agent.initialize_xfer("READ", here, there, "agent 1")
        agent.make_connection("agent 1")

        def begin(_: int) -> Callable[[], bool]:
            agent.transfer(handle)
            return lambda: agent.check_xfer_state(handle) == "DONE"

        medians = _medians_of(begin)
        expect_pattern(memory, 1)
    sync("read")
    return medians


def _notifications(rank: int) -> tuple[float, float]:
    agent = nixl_agent(f"agent {rank}")
    agent.add_remote_agent(swap("metadata", agent.get_agent_metadata(), 1 - rank))
    other = f"agent {1 - rank}"

    def begin(number: int) -> Callable[[], bool]:
        agent.send_notif(other, f"{number}")
        return lambda: agent.check_remote_xfer_done(other, b"%d" % number, tag_is_prefix=False)

    if rank == 0:
        return _medians_of(begin)
    for number in range(2 * ROUNDS):
        while not agent.check_remote_xfer_done(other, b"%d" % number, tag_is_prefix=False):
            time.sleep(0)
        agent.send_notif(other, f"{number}")
    return 0.0, 0.0


def _dlslimes(rank: int) -> tuple[float, float]:
    endpoint, memory = upstream.RDMAEndpoint(), pattern(1000, rank)
    endpoint.register_memory_region(0, memory.data_ptr(), 0, 1000)
    info = swap("info", repr(endpoint.endpoint_info()).encode(), 1 - rank)
    endpoint.connect(eval(info.decode()))  # noqa: S307  the output of repr()
    medians = 0.0, 0.0
    if rank == 0:
        endpoint.read([(0, 0, 0, 0, 1000)]).wait()
        medians = _medians_of(lambda _: endpoint.read([(0, 0, 0, 0, 1000)]).done)
        expect_pattern(memory, 1)
    sync("read")
    endpoint.shutdown()
    return medians


WAYS: dict[str, Callable[[int], tuple[float, float]]] = {
    "Transfer.done": _reads,
    "Work.is_completed": _messages,
    "expect_imm": _immediates,
    "check_xfer_state": _nixl,
    "check_remote_xfer_done": _notifications,
    "DLSlime's future": _dlslimes,
}


def _asked(rank: int, size: int, way: str) -> tuple[float, float]:
    # With a core for each rank no rank needs another rank's core.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    return WAYS[way](rank)


@pytest.mark.parametrize(
    ("env", "way"),
    [
        pytest.param(env, way, id=f"{way}-{name}")
        for name, env in [("staged", STAGED), ("tcp_route", TCP), ("gloo_route", GLOO)]
        for way in WAYS
    ],
)
def test_thread_that_asks_in_vain_lets_the_peer_run(env: dict[str, str], way: str) -> None:
    own, usual = run_world(_asked, 2, way, env=env, fresh=True)[0]
    assert own < MOST_WAITS * usual + HOPS, (
        f"{own * 1e6:.0f} us, and {usual * 1e6:.0f} us where others are let run"
    )


# Period, in microseconds, of the background thread of rank 0, beside a thread that has just posted:
# a notification that comes earlier shows that the engine woke the thread.
AN_HOUR = str(3600 * 10**6)


def _init(rank: int) -> None:
    if rank == 0:
        os.environ["DLSLIME_TICK_US"] = AN_HOUR
    init_group()


async def _await_reads(side: Side) -> None:
    for _ in range(ROUNDS):
        await side.read()


def _be_called_back(side: Side) -> None:
    for _ in range(ROUNDS):
        called = threading.Event()
        side.read().add_done_callback(lambda _, event=called: event.set())  # type: ignore[misc]
        assert called.wait(SOON)


def _told(rank: int, size: int, how: str) -> None:
    _init(rank)
    side = side_of(rank, 1000)
    if rank == 0:
        side.read().wait()
        if how == "awaited":
            asyncio.run(_await_reads(side))
        else:
            _be_called_back(side)
        expect_pattern(side.memory, 1)
        tell("over")
    else:
        await_key("over")


@pytest.mark.parametrize("how", ["awaited", "called_back"])
def test_end_of_a_transfer_is_told_without_a_waiting_thread(how: str) -> None:
    run_world(_told, 2, how, env=STAGED, fresh=True, init=False)


def _works_futures(rank: int, size: int) -> None:
    """Futures of works are torch's: waits call no code of dlslime, so the engine acts alone."""
    _init(rank)
    message = blank(1000)
    for number in range(ROUNDS):
        if rank == 0:
            dist.send(pattern(1000, number), 1)
            work: Any = dist.irecv(message, 1)
            work.get_future().wait()
            expect_pattern(message, number)
        else:
            dist.recv(message, 0)
            dist.send(message, 0)


def test_future_of_a_work_is_told_without_a_waiting_thread() -> None:
    run_world(_works_futures, 2, env=STAGED, fresh=True, init=False)
