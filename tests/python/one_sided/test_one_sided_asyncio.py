"""One-sided transfers awaited by asyncio: without threads, and taken back when cancelled."""

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine

import pytest
import torch.distributed as dist

import dlslime_backend
from harness import all_routes, await_key, dlslime_only, run_world, stopped, tell
from patterns import blank, expect, expect_pattern, pattern
from test_one_sided import NBYTES, Side, side_of
from test_one_sided_errors import LARGE
from test_threads import run_threads

pytestmark = dlslime_only

Main = Callable[[Side, Side], Coroutine[None, None, None]]


async def _result(transfer: dlslime_backend.Transfer) -> object:
    return await transfer


def _in_loop(rank: int, size: int, main: Main, nbytes: int = NBYTES) -> None:
    """Run `main` at rank 0 with two regions shared with rank 1, which makes no calls."""
    sides = side_of(rank, nbytes), side_of(rank, nbytes, key="spare")
    if rank == 0:
        asyncio.run(main(*sides))
        tell("over")
    else:
        await_key("over")


async def _await_twice(side: Side, spare: Side) -> None:
    transfer = side.read()
    assert await _result(transfer) is None
    assert transfer.done()
    expect_pattern(side.memory, 1)
    await transfer
    await side.peer.send(pattern(8))  # eager: no rank receives the message
    side.region.deregister()
    with pytest.raises(ValueError, match="deregistered"):
        await side.read()


@all_routes
@pytest.mark.parametrize("nbytes", [100, 3 << 20])
def test_awaited_read_is_over_and_its_failure_is_raised(env: dict[str, str], nbytes: int) -> None:
    run_world(_in_loop, 2, _await_twice, nbytes, env=env)


def _threads() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/task"))


def _no_more(now: tuple[int, int], before: tuple[int, int]) -> bool:
    """Tell whether no count has grown; the thread that reads a new group's store ends by itself."""
    return now[0] <= before[0] and now[1] <= before[1]


async def _thousand(side: Side, spare: Side) -> None:
    nbytes = len(side.memory)
    await side.read()  # connected
    before = _threads()
    side.memory.fill_(0xEE)
    size = min(nbytes, 70_000)
    offsets = [i * 64 % (nbytes - size + 1) for i in range(1000)]
    reads = asyncio.gather(*(side.read([(at, at, size)]) for at in offsets))
    during = _threads()
    await reads
    assert _no_more(during, before)
    assert _no_more(_threads(), before)
    end = max(offsets) + size
    expect(side.memory[:end], pattern(nbytes, 1)[:end])


@all_routes
@pytest.mark.parametrize("nbytes", [64 * 1064, 80_000])
def test_thousand_reads_are_awaited_without_a_thread(env: dict[str, str], nbytes: int) -> None:
    run_world(_in_loop, 2, _thousand, nbytes, env=env)


def _awaited_immediates(rank: int, size: int) -> None:
    side = side_of(rank, 100 * 64)

    async def main() -> None:
        if rank == 0:
            pieces = [[(i * 64, i * 64, 64)] for i in range(100)]
            begin = side.peer.write_with_imm
            writes = (begin(side.region, side.remote, pieces[i], imm=i) for i in range(100))
            await asyncio.gather(*writes)
        else:
            numbers = await asyncio.gather(*(side.peer.expect_imm() for _ in range(100)))
            assert sorted(numbers) == list(range(100))
            expect_pattern(side.memory, 0)

    asyncio.run(main())


@all_routes
def test_awaited_immediates_give_their_numbers(env: dict[str, str]) -> None:
    run_world(_awaited_immediates, 2, env=env)


async def _cancel_before_a_byte(side: Side, spare: Side) -> None:
    await spare.read()  # connected
    with stopped(1):
        transfer = side.read()
        task = asyncio.ensure_future(_result(transfer))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.done()
        with pytest.raises(dist.DistBackendError, match="cancelled"):
            await transfer
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_result(spare.peer.expect_imm()), 0.02)
    await spare.read()  # the peer has answered all earlier questions
    expect_pattern(side.memory, 0)
    await side.read()  # the pair works as before
    expect_pattern(side.memory, 1)


@all_routes
def test_cancelled_task_leaves_the_memory_untouched(env: dict[str, str]) -> None:
    run_world(_in_loop, 2, _cancel_before_a_byte, env=env, fresh=True)


async def _cancel_among_bytes(side: Side, spare: Side) -> None:
    for _ in range(10):
        tasks = [asyncio.ensure_future(_result(side.read())) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):  # the read was faster
                await task
        side.memory.fill_(0xEE)
        await spare.read([(0, 0, 8)])
        expect(side.memory, blank(len(side.memory)), "after the end of all reads")


@all_routes
def test_task_cancelled_while_bytes_move_leaves_the_memory_alone_then(env: dict[str, str]) -> None:
    run_world(_in_loop, 2, _cancel_among_bytes, LARGE, env=env)


def _loops(rank: int, size: int, at_once: bool) -> None:
    """Four event loops, one after another or each in a thread of its own."""
    sides = [side_of(rank, 200_000, f"region {i}") for i in range(4)]
    if rank == 1:
        return

    async def main(side: Side) -> None:
        await asyncio.gather(*(side.read() for _ in range(10)))
        expect_pattern(side.memory, 1)

    loops: list[Callable[[], None]] = [functools.partial(asyncio.run, main(side)) for side in sides]
    if at_once:
        run_threads(loops)
    else:
        for loop in loops:
            loop()


@all_routes
@pytest.mark.parametrize("at_once", [False, True], ids=["in_turn", "at_once"])
def test_event_loops_of_one_process_await_their_reads(env: dict[str, str], at_once: bool) -> None:
    run_world(_loops, 2, at_once, env=env)


def _left_behind(rank: int, size: int) -> None:
    """A loop is closed before an awaited read has ended; the next loop is not told."""
    side, spare = side_of(rank), side_of(rank, key="spare")
    if rank == 1:
        await_key("over")
        return
    spare.read().wait()
    transfers = []

    async def leave() -> None:
        transfers.append(side.read())
        loop_future = asyncio.ensure_future(_result(transfers[0]))
        await asyncio.wait([loop_future], timeout=0.02)
        assert not loop_future.done()

    with stopped(1):
        asyncio.run(leave())  # cancels the remaining reads
    with pytest.raises(dist.DistBackendError, match="cancelled"):
        transfers[0].wait()
    asyncio.run(_result(spare.read()))
    expect_pattern(side.memory, 0)
    tell("over")


@all_routes
def test_loop_that_ends_takes_its_reads_back(env: dict[str, str]) -> None:
    run_world(_left_behind, 2, env=env, fresh=True)
