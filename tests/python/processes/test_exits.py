"""Exits without destroy: with the program's own status, whatever operations are under way."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from ending import (
    NEVER,
    SOON,
    add_up,
    at_the_interpreters_end,
    await_end_of,
    expect_own_statuses,
    run_ends,
)
from harness import (
    all_routes,
    await_key,
    context,
    dlslime_only,
    init_group,
    tell,
)
from patterns import blank, expect_pattern, pattern
from test_groups import exchange
from test_one_sided import swap

pytestmark = dlslime_only

CPU = torch.device("cpu")


def _use_everything(rank: int, size: int) -> None:
    """Use and leave open all kinds of objects."""
    exchange(None, 1, 100_000)
    group = dist.new_group()
    exchange(group)
    add_up()
    add_up(group)
    dist.barrier()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    dist.irecv(torch.from_numpy(np.zeros(1000)), 1 - rank, tag=7)  # never matched
    endpoint = dlslime_backend.Endpoint()
    endpoint.connect(swap("endpoint", endpoint.address, 1 - rank))
    endpoint.send(pattern(10, rank))
    received = blank(10)
    endpoint.recv(received).wait()
    region = dlslime_backend.register(torch.from_numpy(np.zeros(1000)))
    remote = dlslime_backend.import_region(swap("region", region.export(), 1 - rank))
    dlslime_backend.peer(1 - rank).read(region, remote).wait()
    work = dist.all_reduce(torch.from_numpy(np.ones(100_000)), async_op=True)
    work.wait()  # the thread of the collective may still hold the memory


@all_routes
def test_exit_without_destroy_returns_the_programs_own_status(env: dict[str, str]) -> None:
    for _ in range(5):
        expect_own_statuses(run_ends(_use_everything, 2, env=env))


def _last_words(rank: int, size: int) -> None:
    """Rank 0 sends more than a route takes at once and ends; only then rank 1 receives."""
    exchange(None)
    if rank == 0:
        for work in [dist.isend(pattern(4000, i), 1) for i in range(500)]:
            work.wait()
        tell("pid", str(os.getpid()))
        return
    await_end_of(int(await_key("pid")))
    received = blank(4000)
    for i in range(500):
        dist.recv(received, 0)
        expect_pattern(received, i)


@all_routes
def test_what_was_sent_arrives_though_its_sender_just_ends(env: dict[str, str]) -> None:
    expect_own_statuses(run_ends(_last_words, 2, env=env))


def _raise_after_everything(rank: int, size: int) -> None:
    _use_everything(rank, size)
    raise ValueError("on purpose")


def test_exit_by_an_exception_returns_one() -> None:
    expect_own_statuses(run_ends(_raise_after_everything, 2), [1, 1])


def _forever(call: Callable[[], Any]) -> None:
    """Call `call` again and again in a daemon thread, until the program ends."""

    def again() -> None:
        while True:
            with contextlib.suppress(Exception):
                call()

    threading.Thread(target=again, daemon=True).start()


def _daemons(rank: int, size: int) -> None:
    exchange(None)
    group = dist.new_group()
    add_up(group)
    peer = dlslime_backend.peer(1 - rank)
    _forever(lambda: dist.recv(blank(10), 1 - rank, tag=5))
    _forever(lambda: dist.recv(blank(10), tag=6))
    _forever(lambda: dist.isend(pattern(10), 1 - rank, tag=8).is_completed())
    _forever(lambda: peer.expect_imm().wait())
    _forever(lambda: dist.all_reduce(torch.ones(1), group=group))
    _forever(dlslime_backend.stats)
    time.sleep(0.1)


def test_daemon_threads_that_go_on_do_not_harm_the_exit() -> None:
    for _ in range(3):
        expect_own_statuses(run_ends(_daemons, 2))


def _one_waiter(rank: int, size: int, operation: str) -> None:
    """A daemon thread waits for an event that comes while the interpreter ends."""
    exchange(None)
    group = dist.new_group()
    add_up(group)
    if rank == 1:
        await_key("ending")
        with contextlib.suppress(RuntimeError):  # rank 0 may be as good as gone
            if operation == "all_reduce":
                dist.all_reduce(torch.ones(3), group=group)
            else:
                dist.send(pattern(10), 0, tag=5)
        tell("over")
        return
    waits = {
        "recv": lambda: dist.recv(blank(10), 1, tag=5),
        "all_reduce": lambda: dist.all_reduce(torch.ones(3), group=group),
    }
    threading.Thread(target=waits[operation], daemon=True).start()
    time.sleep(0.2)
    at_the_interpreters_end(_let_the_other_go_on)


def _let_the_other_go_on() -> None:
    tell("ending")
    await_key("over")
    time.sleep(0.5)  # threads that want the GIL get the GIL


@pytest.mark.parametrize("operation", ["recv", "all_reduce"])
def test_what_a_daemon_thread_waits_for_may_come_amid_the_end(operation: str) -> None:
    expect_own_statuses(run_ends(_one_waiter, 2, operation))


def _others_come_back(rank: int, size: int) -> None:
    """A daemon thread in code of another library comes back to Python amid the end."""
    exchange(None)
    if rank == 1:
        await_key("ending")
        tell("awaited")
        tell("over")
        return
    store = context().control.clone()  # a wait in a store blocks all other uses of the store
    until = datetime.timedelta(seconds=SOON)
    threading.Thread(target=store.wait, args=(["awaited"], until), daemon=True).start()
    time.sleep(0.2)
    at_the_interpreters_end(_let_the_other_go_on)


def test_threads_of_others_that_come_back_amid_the_end_do_not_harm_it() -> None:
    expect_own_statuses(run_ends(_others_come_back, 2))


def _no_thread_waits(rank: int, size: int) -> None:
    """A collective's memory, which needs the GIL to be freed, goes with the collective's end."""
    add_up()
    if rank == 0:
        for _ in range(4):  # one for each thread that may exist
            dist.all_reduce(torch.from_numpy(np.ones(1000)), async_op=True)
        at_the_interpreters_end(_let_the_other_go_on)
        return
    await_key("ending")
    with contextlib.suppress(RuntimeError):  # rank 0 may be as good as gone
        for _ in range(4):
            dist.all_reduce(torch.from_numpy(np.ones(1000)))
    tell("over")


def test_a_collective_may_end_amid_the_end() -> None:
    expect_own_statuses(run_ends(_no_thread_waits, 2))


def _left_behind(rank: int, size: int, aborts: bool) -> None:
    add_up()
    if rank == 1:
        await_end_of(int(await_key("pid")), SOON)
        return
    dist.all_reduce(torch.ones(3), async_op=True)
    tell("pid", str(os.getpid()))
    if aborts:
        dist.distributed_c10d._abort_process_group(None)


@pytest.mark.parametrize("aborts", [False, True], ids=["just_ends", "aborts"])
def test_a_collective_that_no_peer_joins_does_not_hold_up_the_exit(aborts: bool) -> None:
    ends = run_ends(_left_behind, 2, aborts, group_timeout=NEVER, timeout=2 * SOON)
    expect_own_statuses(ends)


def _callback_goes_on(rank: int, size: int, of: str) -> None:
    """A callback of the program is still running when the program ends."""
    if rank == 1:
        dist.send(pattern(10), 0)
        await_end_of(int(await_key("pid")), SOON)
        return
    tell("pid", str(os.getpid()))
    begun = threading.Event()

    def take_time(_: Any) -> None:
        begun.set()
        time.sleep(2.5)

    received = blank(10)
    if of == "future":
        dist.irecv(received, 1).get_future().add_done_callback(take_time)
    else:
        dlslime_backend.peer(1).recv(received).add_done_callback(take_time)
    assert begun.wait(SOON)
    at_the_interpreters_end(lambda: time.sleep(3))


@pytest.mark.parametrize("of", ["future", "transfer"])
def test_a_callback_that_still_runs_does_not_harm_the_exit(of: str) -> None:
    expect_own_statuses(run_ends(_callback_goes_on, 2, of))


class _SlowStore(dist.Store):
    """A store written in Python that is slow to answer."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self.asked = threading.Event()

    def check(self, keys: list[str]) -> bool:
        self.asked.set()
        time.sleep(1.0)
        return self._store.check(keys)

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._store.wait(keys)


def _store_is_asked(rank: int, size: int) -> None:
    """The engine asks the group's store, written in Python, for a missing rank."""
    store = _SlowStore(context().store)
    dist.init_process_group(
        "cpu:dlslime",
        store=store,
        rank=0,
        world_size=2,
        timeout=datetime.timedelta(seconds=NEVER),
    )
    dist.irecv(blank(10), 1)
    assert store.asked.wait(SOON)
    at_the_interpreters_end(lambda: time.sleep(2))


def test_a_store_in_python_may_be_asked_when_the_program_ends() -> None:
    expect_own_statuses(run_ends(_store_is_asked, 1, init=False))


def _pair_in_the_making(rank: int, size: int) -> None:
    """Rank 0 ends while a Gloo pair is made; rank 1 makes its end only then."""
    if rank == 0:
        init_group()
        dist.isend(pattern(10), 1)
        tell("pid", str(os.getpid()))
        await_key("making")
        at_the_interpreters_end(_let_a_pair_be_made)
        return
    from dlslime_backend import _backend

    usual = _backend.make_pair_group

    def make(*args: Any) -> Any:
        tell("making")
        await_key("ending")
        return usual(*args)

    _backend.make_pair_group = make
    init_group()
    await_end_of(int(await_key("pid")))


def _let_a_pair_be_made() -> None:
    tell("ending")
    time.sleep(1.5)  # threads that want the GIL get the GIL


def test_a_gloo_pair_may_be_in_the_making_when_the_program_ends() -> None:
    ends = run_ends(
        _pair_in_the_making, 2, init=False, env={"DLSLIME_ROUTE": "gloo"}, timeout=2 * SOON
    )
    expect_own_statuses(ends)


def _peer_goes_first(rank: int, size: int) -> None:
    exchange(None, 1, 100_000)
    add_up()
    if rank == 1:
        await_key("ending")
        tell("pid", str(os.getpid()))
        return
    at_the_interpreters_end(_outlive)


def _outlive() -> None:
    tell("ending")
    await_end_of(int(await_key("pid")))
    time.sleep(0.5)  # threads that want the GIL get the GIL


@all_routes
def test_a_peer_may_end_amid_the_end(env: dict[str, str]) -> None:
    expect_own_statuses(run_ends(_peer_goes_first, 2, env=env))
