"""Works of collectives: aborts, signals, time-outs, texts and callbacks, as for messages."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from ending import NEVER, SOON, add_up, record
from harness import (
    await_death,
    await_key,
    dlslime_only,
    init_group,
    run_world,
    sync,
    tell,
)
from test_groups import exchange
from test_signals import handling

pytestmark = dlslime_only

CPU = torch.device("cpu")


def _collectives(size: int, group: Callable[[], dist.ProcessGroup]) -> dict[str, Callable[[], Any]]:
    """Return collectives by name, each of its own group: collectives of a group wait in turn."""
    one, many = torch.ones(size), torch.ones(size * size)
    calls: dict[str, Callable[[dist.ProcessGroup], Any]] = {
        "all_reduce": lambda g: dist.all_reduce(one.clone(), group=g),
        "broadcast": lambda g: dist.broadcast(one.clone(), 1, group=g),
        "all_gather_into_tensor": lambda g: dist.all_gather_into_tensor(
            many.clone(), one.clone(), group=g
        ),
        "reduce_scatter_tensor": lambda g: dist.reduce_scatter_tensor(
            one.clone(), many.clone(), group=g
        ),
        "all_to_all_single": lambda g: dist.all_to_all_single(one.clone(), one.clone(), group=g),
        "all_gather_object": lambda g: dist.all_gather_object([None] * size, "x", group=g),
        "barrier": lambda g: dist.barrier(g),
        "monitored_barrier": lambda g: g.monitored_barrier(datetime.timedelta(seconds=NEVER)),
        "wait": lambda g: dist.all_reduce(one.clone(), group=g, async_op=True).wait(),
    }
    made = {what: group() for what in calls}
    return {what: lambda what=what: calls[what](made[what]) for what in calls}


def _prepared() -> dist.ProcessGroup:
    """Return a group after a first collective, so that the group's Gloo group exists."""
    group = dist.new_group()
    add_up(group)
    return group


def _abort_wakes(rank: int, size: int, how: str, first: bool) -> None:
    exchange(None)
    calls = _collectives(size, dist.new_group if first else _prepared)
    groups = [g for g in dist.distributed_c10d._world.pg_map if g is not dist.group.WORLD]
    sync("made")
    if rank == 1:
        await_key("over", 2 * SOON)
        return
    news: dict[str, tuple[float, str]] = {}
    threads = [
        threading.Thread(target=record, args=(call, what, news), daemon=True)
        for what, call in calls.items()
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert not news, news
    start = time.monotonic()
    if how == "process group":
        dist.distributed_c10d._abort_process_group(None)
    else:
        for group in groups:
            group.abort() if how == "group" else group._get_backend(CPU).abort()
    for thread in threads:
        thread.join(max(0.0, start + SOON - time.monotonic()))
    asleep = [what for what in calls if what not in news]
    tell("over")
    assert not asleep, f"abort has not woken {asleep}"
    for what, (_, text) in news.items():
        # torch's monitored barrier has a beginning of its own.
        begins = "DistBackendError: " + ("" if what == "monitored_barrier" else "dlslime: ")
        assert text.startswith(begins), f"{what}: {text}"
        assert "aborted" in text, f"{what}: {text}"
        assert "200000 ms" not in text, f"{what}, which did not wait so long: {text}"


@pytest.mark.parametrize("how", ["group", "backend", "process group"])
def test_abort_wakes_threads_that_wait_in_a_collective(how: str) -> None:
    run_world(_abort_wakes, 2, how, False, fresh=True, group_timeout=NEVER, timeout=NEVER)


def test_abort_wakes_threads_that_wait_in_a_first_collective() -> None:
    run_world(_abort_wakes, 2, "group", True, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _aborted_works(rank: int, size: int) -> None:
    """Check the state after an abort: aborted works and futures, and a working default group."""
    group = _prepared()
    sync("made")
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        future = work.get_future()
        heard: list[Any] = []
        told = threading.Event()
        future.add_done_callback(lambda f: (heard.append(f), told.set()))
        assert not work.is_completed()
        group.abort()
        assert told.wait(SOON), "the future does not end"
        assert work.is_completed()
        assert not work.is_success()
        for _ in range(2):
            with pytest.raises(dist.DistBackendError, match="aborted"):
                work.wait()
        with pytest.raises(RuntimeError, match="aborted"):
            future.wait()
        tell("over")
    else:
        await_key("over", 2 * SOON)
    exchange(None)
    add_up()


def test_works_and_futures_of_collectives_say_that_they_were_aborted() -> None:
    run_world(_aborted_works, 2, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _left_amid(rank: int, size: int, destroys: bool) -> None:
    """Rank 0 aborts in a collective and leaves; rank 1 waits in the next collective."""
    group = _prepared()
    if rank == 0:
        dist.all_reduce(torch.ones(3), group=group, async_op=True)
        await_key("waiting", SOON)
        group.abort()
        if destroys:
            dist.destroy_process_group(group)
            del group
        await_key("noticed", 2 * SOON)
        return
    tell("waiting")
    start = time.monotonic()
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(3), group=group)  # rank 0's first collective may have completed
        dist.all_reduce(torch.ones(3), group=group)
    tell("noticed")
    assert time.monotonic() - start < SOON, "rank 0 has left, and rank 1 has not been told"


def test_peers_learn_that_one_has_aborted_and_left_amid_a_collective() -> None:
    run_world(_left_amid, 2, True, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _interrupted(rank: int, size: int, first: bool) -> None:
    """Ctrl-C ends the wait of the main thread, for each kind of wait."""
    exchange(None)
    calls = _collectives(size, dist.new_group if first else _prepared)
    for what, call in calls.items():
        if rank == 1:
            await_key(f"interrupted {what}", SOON)
            continue
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
            call()
        tell(f"interrupted {what}")
        assert time.monotonic() - start < SOON, what


def test_ctrl_c_ends_the_wait_in_a_collective() -> None:
    run_world(_interrupted, 2, False, fresh=True, group_timeout=NEVER, timeout=NEVER)


def test_ctrl_c_ends_the_wait_in_a_first_collective() -> None:
    run_world(_interrupted, 2, True, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _goes_on(rank: int, size: int) -> None:
    """An interrupted operation goes on after Ctrl-C, and signal handlers run during a wait."""
    total = torch.ones(3)
    add_up()
    if rank == 1:
        await_key("interrupted", SOON)
        dist.all_reduce(total)
        await_key("handled", SOON)
        dist.barrier()
        return
    work = dist.all_reduce(total, async_op=True)
    with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
        work.wait()
    assert not work.is_completed(), "it goes on"
    tell("interrupted")
    work.wait()
    assert total.tolist() == [2] * 3
    with handling(lambda *_: tell("handled")):
        dist.barrier()


def test_a_collective_goes_on_after_ctrl_c() -> None:
    run_world(_goes_on, 2, group_timeout=NEVER, timeout=NEVER)


def _explained(rank: int, size: int, how: str) -> None:
    """explain() and route() wait for a missing rank, too."""
    if rank == 1:
        await_key("over", 2 * SOON)
        return
    init_group(timeout=datetime.timedelta(seconds=NEVER))
    peer = dlslime_backend.peer(1)
    for call in (lambda: dlslime_backend.explain(1), peer.route):
        if how == "signal":
            with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
                call()
            continue
        news: dict[str, tuple[float, str]] = {}
        thread = threading.Thread(target=record, args=(call, "it", news), daemon=True)
        thread.start()
        time.sleep(0.3)
        dist.group.WORLD.abort()
        thread.join(SOON)
        assert "aborted" in news["it"][1], news
    tell("over")


@pytest.mark.parametrize("how", ["signal", "abort"])
def test_thread_that_waits_in_explain_is_woken(how: str) -> None:
    run_world(_explained, 2, how, init=False, fresh=True, sync_end=False, timeout=NEVER)


def _mate_dies(rank: int, size: int) -> None:
    exchange(None)
    group = _prepared()
    add_up()
    sync("ready")
    if rank == 1:
        await_key("waiting")
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    tell("waiting")
    for call in (
        lambda: dist.all_reduce(torch.ones(3), group=group),
        lambda: dist.barrier(group),
        dist.barrier,
    ):
        with pytest.raises(dist.DistBackendError) as raised:
            call()
        text = str(raised.value)
        assert text.startswith("dlslime: "), text
        assert "rank 1" in text, text
        assert "/pytorch/" not in text, text
    await_death(1)


def test_death_in_a_collective_is_told_as_any_other() -> None:
    run_world(_mate_dies, 2, may_die=[1], group_timeout=NEVER, timeout=NEVER)


def _late_mate(rank: int, size: int) -> None:
    group, other = dist.new_group(), dist.new_group()
    add_up(group)
    add_up(other)
    group.set_timeout(datetime.timedelta(seconds=1))
    if rank == 1:
        await_key("over", SOON)
        return
    with pytest.raises(dist.DistBackendError, match=r"(?s)^dlslime: .*all_?reduce.*[Tt]imed out"):
        dist.all_reduce(torch.ones(3), group=group)
    work = dist.all_reduce(torch.ones(3), group=other, async_op=True)
    with pytest.raises(dist.DistBackendError, match=r"(?s)^dlslime: .*all_?reduce.*[Tt]imed out"):
        work.wait(datetime.timedelta(milliseconds=200))
    tell("over")


def test_time_out_of_a_collective_is_told_as_any_other() -> None:
    run_world(_late_mate, 2, fresh=True, sync_end=False, timeout=NEVER)


def _callback_of_a_collective(rank: int, size: int) -> None:
    """Callbacks of a collective may block, and destroy the group, as callbacks of a message may."""
    add_up()
    over, held = threading.Event(), threading.Event()

    def block(_: Any) -> None:
        held.wait(SOON)

    def destroy(_: Any) -> None:
        sync("summed up")  # Gloo drops all operations under way when a peer leaves
        dist.destroy_process_group()
        over.set()

    if rank == 1:
        await_key("hung on")
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(6)]
    if rank == 0:
        works[0].get_future().add_done_callback(block)
        works[1].get_future().add_done_callback(block)
        tell("hung on")
    for work in works:  # not delayed by callbacks of other works
        work.wait()
    held.set()
    sync("waited")
    dist.all_reduce(torch.ones(3), async_op=True).get_future().add_done_callback(destroy)
    assert over.wait(SOON)


def test_callbacks_of_collectives_may_block_and_destroy_the_group() -> None:
    run_world(_callback_of_a_collective, 2, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _callback_that_waits(rank: int, size: int) -> None:
    """A callback begins another collective and waits for its future, as in PowerSGD's hook."""
    add_up()
    if rank == 1:
        await_key("hung on")

    def again(future: Any) -> torch.Tensor:
        total: torch.Tensor = future.value()[0]
        other: Any = dist.all_reduce(total, async_op=True)
        result: torch.Tensor = other.get_future().wait()[0]
        return result

    first: Any = dist.all_reduce(torch.ones(3), async_op=True)
    last = first.get_future().then(again)
    tell("hung on")
    assert last.wait().tolist() == [size**2] * 3


def test_callback_may_wait_for_the_future_of_another_collective() -> None:
    run_world(_callback_that_waits, 2, fresh=True, group_timeout=NEVER)


def _future_after_wait(rank: int, size: int) -> None:
    for _ in range(50):
        work: Any = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
        assert future.value()[0].tolist() == [size] * 3


def test_future_is_done_when_the_wait_is_over() -> None:
    run_world(_future_after_wait, 2)


def _without_autograd(rank: int, size: int) -> None:
    with torch.inference_mode():
        received = torch.zeros(2)
        dist.reduce_scatter_tensor(received, torch.ones(2 * size))
        assert received.tolist() == [size] * 2


def test_reduce_scatter_of_tensors_of_inference_mode() -> None:
    run_world(_without_autograd, 2)
