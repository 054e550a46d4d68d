"""Time-outs: an operation's own time-out holds, whatever was set up before the operation."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from harness import (
    PATIENCE,
    all_routes,
    await_key,
    dlslime_only,
    init_group,
    run_world,
    sync,
    tell,
)
from patterns import blank, expect_pattern, pattern
from test_groups import exchange

CPU = torch.device("cpu")
GROUP_SECONDS = 30  # duration of an operation that ignores its own time-out for the group's
SHORT = datetime.timedelta(seconds=1)
# For barriers that name the missing rank: on a busy machine, too, the others arrive in time.
MONITORED = datetime.timedelta(seconds=4)
LIMIT = 15 * PATIENCE  # far above SHORT, and far below the group's

timedelta = datetime.timedelta


def _barrier(group: dist.ProcessGroup) -> None:
    dist.barrier(group, timeout=SHORT)


def _monitored_barrier(group: dist.ProcessGroup) -> None:
    group.monitored_barrier(MONITORED)


def _monitored_barrier_of_all(group: dist.ProcessGroup) -> None:
    group.monitored_barrier(MONITORED, wait_all_ranks=True)


def _all_reduce(group: dist.ProcessGroup) -> None:
    options = dist.AllreduceOptions()
    options.timeout = SHORT
    group.allreduce([torch.ones(2)], options).wait()


def _broadcast(group: dist.ProcessGroup) -> None:
    options = dist.BroadcastOptions()
    options.timeout = SHORT
    options.rootRank = 0
    group.broadcast([torch.ones(2)], options).wait()
    # The root's broadcast is over once its bytes are under way: an all_reduce tells of arrival.
    group.allreduce([torch.ones(2)], _short_all_reduce()).wait()


def _short_all_reduce() -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.timeout = SHORT
    return options


def _all_gather(group: dist.ProcessGroup) -> None:
    options = distributed_c10d.AllgatherOptions()
    options.timeout = SHORT
    outputs = [torch.zeros(2) for _ in range(group.size())]
    group.allgather([outputs], [torch.ones(2)], options).wait()


def _after_set_timeout(group: dist.ProcessGroup) -> None:
    group.set_timeout(SHORT)
    dist.all_reduce(torch.ones(2), group=group)


OPERATIONS = {
    "barrier": _barrier,
    "monitored_barrier": _monitored_barrier,
    "monitored_barrier_of_all": _monitored_barrier_of_all,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "set_timeout": _after_set_timeout,
}


def _one_rank_is_missing(rank: int, size: int, name: str, missing: int, before: str) -> str:
    """Call the operation on every rank but `missing`; return the error's text."""
    group = dist.group.WORLD
    if before == "a group of its own":
        group = dist.new_group()
    if before == "a collective":
        dist.all_reduce(torch.ones(1))
    if before == "a message":
        exchange(None)
    sync("ready")
    if rank == missing:
        await_key("over", seconds=3 * GROUP_SECONDS)
        return ""
    start = time.monotonic()
    with pytest.raises(RuntimeError) as failure:
        OPERATIONS[name](group)
    took = time.monotonic() - start
    sync("failed", size - 1, seconds=2 * GROUP_SECONDS)
    tell("over")
    assert took < LIMIT, f"{took:.1f} s, with a time-out of {SHORT} or {MONITORED}: {failure.value}"
    return str(failure.value)


def _expect_missing(
    name: str, missing: int = 2, before: str = "nothing", env: dict[str, str] | None = None
) -> list[str]:
    return run_world(
        _one_rank_is_missing,
        3,
        name,
        missing,
        before,
        env=env,
        group_timeout=GROUP_SECONDS,
        timeout=3 * GROUP_SECONDS,
        fresh=True,
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_first_collective_keeps_its_own_timeout(name: str) -> None:
    _expect_missing(name)


@pytest.mark.parametrize("name", ["barrier", "monitored_barrier"])
@pytest.mark.parametrize("before", ["a message", "a collective", "a group of its own"])
def test_timeout_of_a_collective_is_the_same_whatever_came_before(name: str, before: str) -> None:
    _expect_missing(name, before=before)


# Gloo waits for rank 0 as long as the group may.
@pytest.mark.parametrize(
    "name",
    [
        "barrier",
        "all_reduce",
        pytest.param("monitored_barrier", marks=dlslime_only),
        pytest.param("monitored_barrier_of_all", marks=dlslime_only),
    ],
)
def test_first_collective_keeps_its_own_timeout_without_rank_0(name: str) -> None:
    _expect_missing(name, missing=0)


@pytest.mark.parametrize("before", ["nothing", "a message", "a collective", "a group of its own"])
def test_monitored_barrier_names_the_missing_rank(before: str) -> None:
    first, second, _ = _expect_missing("monitored_barrier", before=before)
    assert "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms" in first
    assert "Rank 1 successfully reached monitoredBarrier" in second
    every = _expect_missing("monitored_barrier_of_all", before=before)[0]
    assert "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 4000 ms" in every


def _two_are_missing(rank: int, size: int, wait_all_ranks: bool) -> str:
    if rank > 0:
        await_key("over", seconds=3 * GROUP_SECONDS)
        return ""
    with pytest.raises(RuntimeError) as failure:
        dist.group.WORLD.monitored_barrier(SHORT, wait_all_ranks=wait_all_ranks)
    tell("over")
    return str(failure.value)


@pytest.mark.parametrize(("wait_all_ranks", "named"), [(False, "Rank 1"), (True, "Ranks 1, 2")])
def test_monitored_barrier_names_the_first_or_all_that_are_missing(
    wait_all_ranks: bool, named: str
) -> None:
    first = run_world(
        _two_are_missing, 3, wait_all_ranks, group_timeout=GROUP_SECONDS, timeout=90, fresh=True
    )[0]
    assert f"[Rank 0]: {named} failed to pass monitoredBarrier in 1000 ms" in first


def _first_message_is_late(rank: int, size: int) -> None:
    """The peer is connected, and sends no message until the receive has been given up."""
    if rank == 1:
        await_key("over", seconds=3 * GROUP_SECONDS)
        return
    start = time.monotonic()
    with pytest.raises(RuntimeError):
        dist.irecv(torch.zeros(2), 1).wait(SHORT)
    took = time.monotonic() - start
    tell("over")
    assert took < LIMIT, f"{took:.1f} s"


@all_routes
def test_first_message_keeps_its_own_timeout(env: dict[str, str]) -> None:
    run_world(
        _first_message_is_late,
        2,
        env=env,
        group_timeout=GROUP_SECONDS,
        timeout=3 * GROUP_SECONDS,
        fresh=True,
    )


LATER = 4.0  # seconds: above the group's time-out, and far below the operation's


def _comes_late(rank: int, size: int, how: str) -> None:
    """Rank 1 begins after the group's time-out, and the receive may take longer."""
    group_seconds = timedelta(seconds=LATER / 4)
    longer = timedelta(seconds=10 * LATER * PATIENCE)
    if rank == 1:
        await_key("begin", seconds=60)
        init_group(timeout=longer)
        dist.send(pattern(1000, 1), 0)
        return
    init_group(timeout=group_seconds)
    if how == "set_timeout":
        dist.group.WORLD.set_timeout(longer)
    received = blank(1000)
    failures: list[BaseException] = []

    def receive() -> None:
        try:
            dist.irecv(received, 1).wait(*([longer] if how == "wait" else []))
        except BaseException as error:
            failures.append(error)

    waiter = threading.Thread(target=receive)
    waiter.start()
    time.sleep(LATER)  # passes the group's time-out
    tell("begin")
    waiter.join()
    assert not failures, failures
    expect_pattern(received, 1)


@dlslime_only  # init_process_group of Gloo waits for all ranks
@pytest.mark.parametrize("how", ["wait", "set_timeout"])
def test_longer_timeout_holds_for_a_peer_that_was_not_there_before(how: str) -> None:
    run_world(_comes_late, 2, how, init=False, fresh=True)
