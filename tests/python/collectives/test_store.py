"""Stores of groups that die after init, fail, block, or are written in Python."""

from __future__ import annotations

import datetime
import gc
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, context, dlslime_only, init_group, run_world, sync, tell
from patterns import blank, pattern
from polling import eventually
from test_groups import exchange

pytestmark = dlslime_only


class MortalStore(dist.Store):
    """A store in Python without optional functions, which dies on demand."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner = inner
        self._alone = threading.Lock()
        self.dead = False
        self.read: set[str] = set()  # the fetched addresses of ranks

    def _check_alive(self) -> None:
        if self.dead:
            raise ConnectionError("killed on purpose")

    def set(self, key: str, value: bytes) -> None:
        self._check_alive()
        with self._alone:
            self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        self._check_alive()
        with self._alone:
            value = self._inner.get(key)
        if "address/" in key:
            self.read.add(key)
        return value

    def add(self, key: str, amount: int) -> int:
        self._check_alive()
        with self._alone:
            return self._inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        self._check_alive()
        with self._alone:
            return self._inner.check(keys)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        while not self.check(keys):
            time.sleep(0.01)


class SmallStore(dist.Store):
    """A store with only the functions that torch's documentation asks for and Gloo uses."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner = inner

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        while not self._inner.check([key]):
            time.sleep(0.01)
        return self._inner.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        for key in keys:
            self.get(key)


def _sum_of_ranks(group: Any = None) -> None:
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(ranks)


def _everything_without_the_store(rank: int, size: int) -> None:
    store = MortalStore(context().store)
    init_group(store=store)
    subgroup = dist.new_group([1, 2])
    eventually(lambda: len(store.read) == (2 if rank == 0 else 3))
    sync("read")
    store.dead = True
    exchange(None)
    _sum_of_ranks()
    if rank > 0:
        exchange(subgroup)
        _sum_of_ranks(subgroup)
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=60))


@all_routes
def test_store_may_die_after_init(env: dict[str, str]) -> None:
    run_world(_everything_without_the_store, 3, env=env, init=False)


def _is_gone(store: dist.Store) -> bool:
    try:
        store.add("anything", 1)
    except RuntimeError:
        return True
    return False


def _host_of_the_store_ends(rank: int, size: int) -> None:
    address = context().job.store_address
    if rank == 0:
        store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        tell("port", str(store.port))
    else:
        store = dist.TCPStore(address, int(await_key("port")), is_master=False)
    init_group(store=store)
    if rank == 0:
        dist.destroy_process_group()
        del store
        gc.collect()
        tell("gone")
        return
    await_key("gone")
    eventually(lambda: _is_gone(store))
    partner = 3 - rank
    received = blank(1000)
    works = [dist.irecv(received, partner), dist.isend(pattern(1000, rank), partner)]
    for work in works:
        work.wait()
    assert torch.equal(received, pattern(1000, partner))


def test_host_of_the_store_may_end_at_once() -> None:
    env = {"DLSLIME_LINGER_MS": "60000"}  # the others may be slow to read the host's last bytes
    run_world(_host_of_the_store_ends, 3, env=env, init=False, sync_end=False)


def _store_that_fails(rank: int, size: int) -> None:
    store = MortalStore(context().store)
    init_group(store=store, world_size=2)  # the other rank never comes
    store.dead = True
    with pytest.raises(dist.DistBackendError, match="killed on purpose"):
        dist.recv(blank(8), 1)
    with pytest.raises(dist.DistBackendError, match="killed on purpose"):
        dist.all_reduce(torch.ones(1))


def test_what_times_out_tells_the_error_of_the_store() -> None:
    run_world(_store_that_fails, 1, init=False, group_timeout=1.5)


def _by_a_small_store(rank: int, size: int) -> None:
    init_group(store=SmallStore(context().store))
    gc.collect()
    exchange(None)
    _sum_of_ranks()
    group = dist.new_group()
    exchange(group)


@all_routes
def test_store_written_in_python_may_lack_what_is_optional(env: dict[str, str]) -> None:
    run_world(_by_a_small_store, 2, env=env, init=False)


def _rank_that_does_not_come(rank: int, size: int) -> None:
    if rank != 1:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(1))
        text = str(caught.value)
        assert "rank 1" in text, text
        assert "has not called" not in text, "that was not seen"
        with pytest.raises(dist.DistBackendError, match="new process group"):
            dist.barrier()
    sync("failed")
    exchange(None)


def test_first_collective_names_the_rank_that_is_missing() -> None:
    run_world(_rank_that_does_not_come, 3, group_timeout=1.5)


def _limit_of_the_operation(rank: int, size: int) -> None:
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(milliseconds=500)
    begun = time.monotonic()
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"(?s)Timed out after 500 ms.*rank 1"):
            dist.group.WORLD.allreduce([torch.ones(1)], options).wait()
        assert time.monotonic() - begun < 300, "the group's own time-out"
    sync("timed out")


def test_time_out_of_the_first_collective_is_its_own() -> None:
    run_world(_limit_of_the_operation, 2, group_timeout=600)


def _failed_to_pass(rank: int, size: int, wait_all: bool) -> None:
    half = datetime.timedelta(milliseconds=500)
    if rank == 0:
        names = "Ranks 1, 2" if wait_all else "Rank 1"
        with pytest.raises(
            RuntimeError, match=f"{names} failed to pass monitoredBarrier in 500 ms"
        ):
            dist.group.WORLD.monitored_barrier(half, wait_all)
    sync("failed")
    if rank != 0:  # the late ranks get an error, too
        with pytest.raises(RuntimeError, match="failed to pass"):
            dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=60), wait_all)
    sync("late")
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=60), wait_all)
    dist.barrier()


@pytest.mark.parametrize("wait_all", [False, True])
def test_monitored_barrier_names_the_missing_as_the_first_collective(wait_all: bool) -> None:
    run_world(_failed_to_pass, 3, wait_all, group_timeout=600)


def _what_setting_up_does_not_need(rank: int, size: int) -> None:
    from dlslime_backend import _backend

    stores: list[dist.Store] = []
    make = _backend._gloo

    def noting(store: dist.Store, *arguments: Any) -> Any:
        stores.append(store)
        return make(store, *arguments)

    _backend._gloo = noting
    try:
        dist.barrier()
    finally:
        _backend._gloo = make
    for call in (
        lambda: stores[0].add("key", 1),
        lambda: stores[0].delete_key("key"),
        stores[0].num_keys,
    ):
        with pytest.raises(NotImplementedError, match="only for setting up Gloo"):
            call()


def test_store_for_setting_up_refuses_what_needs_a_server() -> None:
    run_world(_what_setting_up_does_not_need, 2, fresh=True)


class _Alarm(Exception):
    pass


def _raise_alarm(*_: object) -> None:
    raise _Alarm


def _all_reduce() -> None:
    dist.all_reduce(torch.ones(1))


def _monitored_barrier() -> None:
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=600))


def _signal_in(rank: int, size: int, operation: Callable[[], None]) -> None:
    if rank == 0:
        signal.signal(signal.SIGALRM, _raise_alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(_Alarm):
            operation()
    sync("interrupted")


@pytest.mark.parametrize("operation", [_all_reduce, _monitored_barrier])
def test_signals_are_heeded_while_the_first_collective_waits(operation: Callable[[], None]) -> None:
    run_world(_signal_in, 2, operation, group_timeout=600, fresh=True)
