"""Invalid time-outs are refused at the call, and the refusal changes nothing."""

import contextlib
import datetime
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness import (
    BACKEND,
    PATIENCE,
    all_routes,
    await_key,
    context,
    dlslime_only,
    init_group,
    run_world,
    tell,
)
from patterns import blank, expect_pattern, pattern
from test_groups import exchange
from test_timeouts import CPU, LIMIT

timedelta = datetime.timedelta

# torch hands C++ 64 bits of microseconds, which make timedelta.max negative and timedelta.min
# 184,000 years; or whole milliseconds.
BAD = {
    "zero": timedelta(0),
    "negative": timedelta(seconds=-1),
    "less_than_a_millisecond": timedelta(microseconds=500),
    "max": timedelta.max,
    "min": timedelta.min,
    "beyond_the_clock": timedelta(days=400 * 365),
}
# 0, or any time that torch rounds to 0, stands for the time-out of the group; for an operation's
# options, -1 ms does.
BAD_WAITS = {name: BAD[name] for name in ("negative", "max", "min", "beyond_the_clock")} | {
    "float_negative": -1.0,
    "nan": math.nan,
    "inf": math.inf,
}
BAD_OPTIONS = {name: BAD[name] for name in ("zero", "negative", "max", "min", "beyond_the_clock")}
GOOD = [timedelta(milliseconds=1), timedelta(days=1), timedelta(days=36500)]


@contextlib.contextmanager
def refused(name: object) -> Iterator[None]:
    """Expect a ValueError about a time-out, without a wait, from the code inside."""
    start = time.monotonic()
    with pytest.raises(ValueError, match="(?i)time-?out"):
        yield
    assert time.monotonic() - start < LIMIT, f"{name}: it was waited for"


def _refused_at_init(rank: int, size: int) -> None:
    for name, timeout in BAD.items():
        with refused(name):
            init_group(timeout=timeout)
        assert not dist.is_initialized()
    init_group()
    exchange(None)


@dlslime_only
def test_init_process_group_refuses_what_is_no_timeout() -> None:
    run_world(_refused_at_init, 2, init=False)


def _refused_by_new_group(rank: int, size: int) -> None:
    exchange(None)
    for name, timeout in BAD.items():
        with refused(name):
            dist.new_group(timeout=timeout)
        with refused(name):
            dist.new_group([0, 1], timeout=timeout, use_local_synchronization=True)
    exchange(None)
    exchange(dist.new_group())


@dlslime_only
def test_new_group_refuses_what_is_no_timeout() -> None:
    run_world(_refused_by_new_group, 2)


def _refused_by_options(rank: int, size: int) -> None:
    import dlslime_backend

    for name, timeout in BAD.items():
        with refused(name):
            dlslime_backend.Options(timeout=timeout)
        options = dlslime_backend.Options()
        options._timeout = timeout  # torch's own attribute, which checks nothing
        with refused(name):
            dist.new_group(pg_options=options)
    exchange(dist.new_group())


@dlslime_only
def test_options_refuse_what_is_no_timeout() -> None:
    run_world(_refused_by_options, 2)


def _refused_by_set_timeout(rank: int, size: int, collective_before: bool) -> None:
    group = dist.group.WORLD
    if collective_before:
        dist.barrier()
    backend = group._get_backend(CPU)
    usual = timedelta(seconds=20 * PATIENCE)
    group.set_timeout(usual)
    for name, timeout in {**BAD, **BAD_WAITS, "float_zero": 0.0}.items():
        with refused(name):
            group.set_timeout(timeout)
        assert backend.options._timeout == usual, name
    exchange(None)
    dist.barrier()


@dlslime_only
@pytest.mark.parametrize("collective_before", [False, True])
def test_set_timeout_refuses_what_is_none_and_keeps_what_was_set(collective_before: bool) -> None:
    run_world(_refused_by_set_timeout, 2, collective_before)


def _refused_by_wait(rank: int, size: int) -> None:
    """A refused wait leaves its operation alone: the operation succeeds."""
    if rank == 1:
        await_key("refused")
        dist.send(pattern(300_000, 1), 0)
        return
    received = blank(300_000)
    work = dist.irecv(received, 1)
    for name, timeout in BAD_WAITS.items():
        with refused(name):
            work.wait(timeout)
        assert not work.is_completed(), name
    tell("refused")
    work.wait()
    expect_pattern(received, 1)
    with refused("also of what is over: a mistake shows at once"):
        work.wait(BAD_WAITS["negative"])


@dlslime_only
def test_wait_refuses_what_is_no_timeout_and_takes_nothing_back() -> None:
    run_world(_refused_by_wait, 2)


def _wait_of_nothing(rank: int, size: int) -> None:
    if rank == 1:
        await_key("posted")
        dist.send(pattern(100, 1), 0)
        return
    received = blank(100)
    work = dist.irecv(received, 1)
    tell("posted")
    work.wait(timedelta(0))
    expect_pattern(received, 1)


@all_routes
def test_wait_of_no_time_means_the_groups_timeout(env: dict[str, str]) -> None:
    run_world(_wait_of_nothing, 2, env=env)


def _with_timeout(kind: type, timeout: timedelta) -> object:
    options = kind()
    options.timeout = timeout
    return options


COLLECTIVES = {
    "barrier": lambda group, t: dist.barrier(group, timeout=t),
    "monitored_barrier": lambda group, t: group.monitored_barrier(t),
    "all_reduce": lambda group, t: group.allreduce(
        [torch.ones(1)], _with_timeout(dist.AllreduceOptions, t)
    ),
    "broadcast": lambda group, t: group.broadcast(
        [torch.ones(1)], _with_timeout(dist.BroadcastOptions, t)
    ),
    "gather": lambda group, t: group.gather(
        [[torch.ones(1) for _ in range(group.size())]] if group.rank() == 0 else [],
        [torch.ones(1)],
        _with_timeout(dist.GatherOptions, t),
    ),
}


def _refused_by_collectives(rank: int, size: int, collective_before: bool) -> None:
    """A refused collective takes no place in the order, and sets nothing up."""
    group = dist.group.WORLD
    if collective_before:
        dist.barrier()
    for operation, call in COLLECTIVES.items():
        for name, timeout in BAD_OPTIONS.items():
            with refused(f"{operation}, {name}"):
                call(group, timeout)
    for call in COLLECTIVES.values():
        work = call(group, timedelta(seconds=20 * PATIENCE))
        if work is not None:
            work.wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


@dlslime_only
@pytest.mark.parametrize("collective_before", [False, True], ids=["first", "later"])
def test_collectives_refuse_what_is_no_timeout(collective_before: bool) -> None:
    run_world(_refused_by_collectives, 2, collective_before, fresh=True)


def _good_ones(rank: int, size: int) -> None:
    for timeout in GOOD[1:]:
        group = dist.new_group(timeout=timeout)
        exchange(group)
        dist.barrier(group, timeout=timeout)
        group.set_timeout(timeout)
        works = [dist.irecv(torch.zeros(1), 1 - rank, group=group)]
        works.append(dist.isend(torch.ones(1), 1 - rank, group=group))
        for work in works:
            work.wait(timeout)
        dist.all_reduce(torch.ones(1), group=group)
    group = dist.new_group()
    group.set_timeout(GOOD[0])
    if BACKEND == "dlslime":
        assert group._get_backend(CPU).options._timeout == GOOD[0]


@all_routes
def test_shortest_and_longest_timeouts_are_taken(env: dict[str, str]) -> None:
    run_world(_good_ones, 2, env=env)


# --- the API of one-sided transfers, with time-outs in seconds ------------------------------------

BAD_SECONDS = [0, -1, -0.001, 0.0001, math.nan, math.inf, -math.inf, 1e300]
BAD_WAIT_SECONDS = [-1, -0.001, math.nan, math.inf, -math.inf, 1e300]  # 0: "only if over"


@dlslime_only
def test_endpoints_and_hubs_refuse_what_is_no_timeout() -> None:
    import dlslime_backend

    for kind in (dlslime_backend.Endpoint, dlslime_backend.Hub):
        for seconds in BAD_SECONDS:
            with refused(f"{kind.__name__}({seconds})"):
                kind("bad", timeout=seconds)


@contextlib.contextmanager
def _pair() -> Iterator[list[Any]]:
    """Make two endpoints in the process, connected to each other."""
    import dlslime_backend

    with dlslime_backend.Endpoint("a") as a, dlslime_backend.Endpoint("b") as b:
        a.connect(b.address)
        b.connect(a.address)
        yield [a, b]


@dlslime_only
def test_wait_for_a_transfer_refuses_what_is_no_timeout_and_takes_nothing_back() -> None:
    with _pair() as (a, b):
        received = torch.zeros(4)
        receive = a.recv(received)
        for seconds in BAD_WAIT_SECONDS:
            if not seconds > 0:
                with refused(seconds):
                    receive.wait(seconds)
                assert not receive.done(), seconds
        b.send(torch.ones(4)).wait()
        receive.wait(10)
        assert received.tolist() == [1, 1, 1, 1]
        for seconds in BAD_WAIT_SECONDS:  # also refuses waits for ever on a finished transfer
            with refused(seconds):
                receive.wait(seconds)


@dlslime_only
def test_wait_of_zero_seconds_takes_back_what_is_not_over() -> None:
    with _pair() as (a, b):
        with pytest.raises(TimeoutError):
            a.recv(torch.zeros(4)).wait(0)
        b.send(torch.ones(4)).wait()
        receive = a.recv(torch.zeros(4))
        receive.wait(10)
        receive.wait(0)


@dlslime_only
def test_deregister_refuses_what_is_no_timeout_and_keeps_the_region() -> None:
    import dlslime_backend

    region = dlslime_backend.register(torch.zeros(16, dtype=torch.uint8))
    for seconds in BAD_WAIT_SECONDS:
        with refused(seconds):
            region.deregister(seconds)
        region.bytes_at(0, 16)  # still registered
    region.deregister(0)


@dlslime_only
def test_futures_of_the_original_api_refuse_what_is_no_timeout() -> None:
    from dlslime_backend.compat import dlslime

    a, b = dlslime.RDMAEndpoint(), dlslime.RDMAEndpoint()
    try:
        a.connect(b.endpoint_info())
        b.connect(a.endpoint_info())
        future = a.imm_recv()
        for seconds in BAD_WAIT_SECONDS:
            if not seconds > 0:
                with refused(seconds):
                    future.wait(seconds)
        b.write_with_imm([], 7).wait()
        future.wait(10)
        assert future.imm_data() == 7
    finally:
        a.shutdown()
        b.shutdown()


def _nothing(rank: int, size: int) -> None:
    assert context() is not None


@dlslime_only
@pytest.mark.parametrize("name", ["DLSLIME_RECOVERY_MS", "DLSLIME_RETURN_MS", "DLSLIME_LINGER_MS"])
def test_variables_that_are_no_time_are_refused_by_name(name: str) -> None:
    for value in ("-1", "1e3", "nan", "inf", "99999999999999999999"):
        with pytest.raises(AssertionError, match=f"{name}={value} is not understood"):
            run_world(_nothing, 1, env={name: value}, fresh=True)
