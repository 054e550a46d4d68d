"""First collectives begun with async_op: the ranks meet without holding up the caller."""

from __future__ import annotations

import contextlib
import datetime
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dlslime_backend import _backend
from ending import NEVER, SOON, add_up, await_end_of, expect_own_statuses, run_ends
from harness import await_key, dlslime_only, init_group, run_world, sync, tell
from patterns import blank, expect_pattern, pattern
from polling import eventually
from test_groups import exchange
from test_signals import handling

pytestmark = dlslime_only

SHORT = datetime.timedelta(seconds=1)


Group = dist.ProcessGroup | None


def _all_reduce(rank: int, size: int, group: Group = None) -> tuple[Any, Callable[[], bool]]:
    total = torch.full((3,), float(rank))
    work = dist.all_reduce(total, group=group, async_op=True)
    return work, lambda: total.tolist() == [sum(range(size))] * 3


def _broadcast(rank: int, size: int, group: Group = None) -> tuple[Any, Callable[[], bool]]:
    values = torch.full((3,), float(rank))
    work = dist.broadcast(values, size - 1, group=group, async_op=True)
    return work, lambda: values.tolist() == [size - 1] * 3


def _all_gather(rank: int, size: int, group: Group = None) -> tuple[Any, Callable[[], bool]]:
    parts = [torch.zeros(2) for _ in range(size)]
    work = dist.all_gather(parts, torch.full((2,), float(rank)), group=group, async_op=True)
    return work, lambda: [part.tolist() for part in parts] == [[r, r] for r in range(size)]


def _all_to_all(rank: int, size: int, group: Group = None) -> tuple[Any, Callable[[], bool]]:
    received = torch.zeros(size)
    sent = torch.arange(size) + 10.0 * rank
    work = dist.all_to_all_single(received, sent, group=group, async_op=True)
    return work, lambda: received.tolist() == [10 * r + rank for r in range(size)]


def _reduce_scatter(rank: int, size: int, group: Group = None) -> tuple[Any, Callable[[], bool]]:
    total = torch.zeros(1)
    work = dist.reduce_scatter(
        total, [torch.full((1,), float(r)) for r in range(size)], group=group, async_op=True
    )
    return work, lambda: total.item() == rank * size


def _barrier(rank: int, size: int, group: Group = None) -> tuple[Any, Callable[[], bool]]:
    return dist.barrier(group=group, async_op=True), lambda: True


COLLECTIVES = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "barrier": _barrier,
}


def _then_a_message(rank: int, size: int, name: str) -> None:
    """The other ranks wait for rank 0's message before they join rank 0's collective."""
    received = blank(1000)
    if rank > 0:
        dist.recv(received, 0)
        expect_pattern(received, 3)
    work, right = COLLECTIVES[name](rank, size)
    if rank == 0:
        assert not work.is_completed()
        assert not work.is_success()
        for peer in range(1, size):
            dist.send(pattern(1000, 3), peer)
    work.wait()
    assert work.is_completed()
    assert right()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_first_collective_does_not_hold_up_its_caller(name: str) -> None:
    run_world(_then_a_message, 3, name, fresh=True, group_timeout=20)


def _many(rank: int, size: int) -> None:
    """All collectives called before the ranks have met begin afterwards, in order."""
    begun = []
    for _ in range(5):
        begun += [call(rank, size) for call in COLLECTIVES.values()]
        if rank == 0 and len(begun) == len(COLLECTIVES):
            dist.send(pattern(10), 1)
        elif rank == 1 and len(begun) == len(COLLECTIVES):
            dist.recv(blank(10), 0)
    for work, right in reversed(begun):
        work.wait()
        assert right()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend._get_sequence_number_for_group() == len(begun)
    add_up()


def test_collectives_behind_the_first_one_keep_their_order() -> None:
    run_world(_many, 3, fresh=True, group_timeout=60)


def _futures(rank: int, size: int) -> None:
    received = blank(10)
    if rank == 1:
        dist.recv(received, 0)
    total = torch.full((3,), float(rank + 1))
    future = dist.all_reduce(total, async_op=True).get_future()
    twice = future.then(lambda f: f.value()[0] * 2)
    assert rank == 1 or not future.done()
    if rank == 0:
        dist.send(pattern(10), 1)
    assert twice.wait().tolist() == [6] * 3
    assert future.value()[0].tolist() == [3] * 3


def test_future_of_a_first_collective_has_its_value() -> None:
    run_world(_futures, 2, fresh=True, group_timeout=20)


def _begin(tensor: torch.Tensor, timeout: datetime.timedelta | None = None) -> Any:
    """Begin an all_reduce with a time-out of its own."""
    options = dist.AllreduceOptions()
    if timeout is not None:
        options.timeout = timeout
    group: Any = dist.group.WORLD
    return group.allreduce([tensor], options)


def _no_peer_comes(rank: int, size: int, how: str) -> None:
    """The work with the shortest time-out ends first; the group's collectives are over then."""
    if rank == 1:
        await_key("over", NEVER)
        return
    works = [
        _begin(torch.ones(1), SHORT if how == "first" else None),
        _begin(torch.ones(1), SHORT),
        _begin(torch.ones(1)),
    ]
    start = time.monotonic()
    late = works[0 if how == "first" else 1]
    if how == "polled":
        eventually(late.is_completed)
    elif how == "future":
        eventually(late.get_future().done)
    with pytest.raises(dist.DistBackendError) as failure:
        late.wait()
    assert time.monotonic() - start < SOON
    assert "Timed out after 1000 ms" in str(failure.value)
    assert "nothing has come from rank 1" in str(failure.value)
    if how == "first":  # the set-up has failed, and all works waiting for the set-up fail, too
        eventually(works[2].is_completed)
    else:
        assert not works[2].is_completed()
    tell("over")


@pytest.mark.parametrize("how", ["first", "second", "polled", "future"])
def test_time_outs_hold_before_the_ranks_have_met(how: str) -> None:
    run_world(_no_peer_comes, 2, how, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _gloo_devices() -> int:
    """Count the threads that serve Gloo's sockets; other threads come and go, or lack a name."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            count += (task / "comm").read_text() == "gloo_tcp_loop\n"
    return count


def _given_up(rank: int, size: int) -> None:
    """A work given up before its turn never begins, nor does any later work."""
    if rank == 1:
        await_key("given up", SOON)
        dist.all_reduce(torch.ones(1))
        return
    total = torch.ones(1)
    first = _begin(total)
    second, third = _begin(torch.ones(1), SHORT), _begin(torch.ones(1))
    with pytest.raises(dist.DistBackendError, match="Timed out after 1000 ms"):
        second.wait()
    tell("given up")
    first.wait()
    assert total.item() == 2
    assert _gloo_devices() > 0
    for call in (third.wait, dist.barrier):
        with pytest.raises(dist.DistBackendError, match="given up before all ranks had come"):
            call()
    dist.destroy_process_group()
    eventually(lambda: _gloo_devices() == 0, what="Gloo's devices are gone")
    assert first.result()[0].data_ptr() == total.data_ptr()


def test_what_was_given_up_before_its_turn_ends_the_groups_collectives() -> None:
    run_world(_given_up, 2, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _signalled(rank: int, size: int) -> None:
    """A signal handler ends the wait of the main thread; the collective goes on."""
    total = torch.ones(1)
    if rank == 1:
        await_key("interrupted", SOON)
        dist.all_reduce(total)
        return
    work = dist.all_reduce(total, async_op=True)
    with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
        work.wait()
    tell("interrupted")
    work.wait()
    assert total.item() == 2


def test_first_collective_goes_on_after_ctrl_c() -> None:
    run_world(_signalled, 2, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _ended(rank: int, size: int, how: str) -> None:
    """A group ends between its first collectives' begin and their end; the collectives end, too."""
    init_group(timeout=datetime.timedelta(seconds=NEVER))
    exchange(None)
    if rank == 0:
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
        ended = threading.Event()
        works[1].get_future().add_done_callback(lambda _: ended.set())
        start = time.monotonic()
        if how == "abort":
            dist.distributed_c10d._abort_process_group(None)
        else:
            dist.destroy_process_group()
        for work in works:
            with pytest.raises(dist.DistBackendError):
                work.wait()
        assert ended.wait(SOON)
        assert time.monotonic() - start < SOON
    sync("over", seconds=2 * SOON)


@pytest.mark.parametrize("how", ["abort", "destroy"])
def test_first_collective_ends_with_its_group(how: str) -> None:
    run_world(_ended, 2, how, fresh=True, init=False, timeout=NEVER)


def _left_behind(rank: int, size: int, waits: bool) -> None:
    if rank == 1:
        await_end_of(int(await_key("pid")), SOON)
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    if waits:
        threading.Thread(target=work.wait, daemon=True).start()
    time.sleep(0.2)
    tell("pid", str(torch.multiprocessing.current_process().pid))


@pytest.mark.parametrize("waits", [False, True])
def test_first_collective_that_no_peer_joins_does_not_hold_up_the_exit(waits: bool) -> None:
    expect_own_statuses(run_ends(_left_behind, 2, waits, group_timeout=NEVER, timeout=2 * SOON))


def _dropped_at_once(rank: int, size: int) -> None:
    """A group dropped as soon as its collective has ended keeps no Gloo group."""
    dist.barrier()  # makes the Gloo group of the default group
    before = _gloo_devices()
    for _ in range(60):
        group = dist.new_group()
        dist.barrier(group)
        dist.destroy_process_group(group)
        del group
    eventually(lambda: _gloo_devices() == before, what="Gloo's devices are gone")


def test_groups_that_end_with_their_collectives_leave_nothing_of_gloos() -> None:
    # More processes than cores: the thread that ends a collective may lose its core at the end.
    run_world(_dropped_at_once, 4, fresh=True, timeout=NEVER)


def _kept(rank: int, size: int) -> None:
    dist.barrier()  # makes the Gloo group of the default group
    group = dist.new_group()
    before = _gloo_devices()
    works = [call(rank, size, group)[0] for call in COLLECTIVES.values()]
    for work in works:
        work.wait()
    assert _gloo_devices() > before
    sync("all have it")
    dist.destroy_process_group(group)
    del group
    eventually(lambda: _gloo_devices() == before, what="Gloo's devices are gone")
    assert all(work.is_success() for work in works)


def test_a_work_that_is_kept_keeps_no_gloo_group() -> None:
    run_world(_kept, 2, fresh=True)  # earlier groups in the same process may end meanwhile


def _sets_without_end(rank: int, size: int) -> None:
    """A dishonest rank sets keys without end: no rank keeps more bytes than any rank needs."""
    if rank == 1:

        def flood(store: dist.Store, *_: Any) -> Any:
            for number in range(200):
                store.set(f"key {number}", "x" * 20_000)
            return store.get("what no rank sets")  # waits until the set-up fails

        _backend._gloo = flood
    with pytest.raises(dist.DistBackendError, match="rank 1: it has set more than 1060864 bytes"):
        dist.all_reduce(torch.ones(1))


def test_store_of_the_first_collective_is_bounded() -> None:
    run_world(_sets_without_end, 3, fresh=True)
