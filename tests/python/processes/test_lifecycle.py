"""A group's life: destroyed and made again, aborted, shut down, left behind in a store."""

import datetime
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

from ending import NEVER, SOON
from harness import (
    all_routes,
    await_key,
    context,
    dlslime_only,
    init_group,
    run_world,
    sync,
    tell,
)
from patterns import blank, expect_pattern, pattern
from polling import eventually
from test_groups import exchange

CPU = torch.device("cpu")


def _again(rank: int, size: int, rounds: int) -> None:
    for i in range(rounds):
        init_group(store=dist.PrefixStore(f"life{i}", context().store))
        exchange(None, i)
        exchange(dist.new_group(), i + 1, 200_000)
        dist.barrier()
        dist.destroy_process_group()


@all_routes
@pytest.mark.parametrize("size", [2, 3])
def test_destroy_and_init_again(env: dict[str, str], size: int) -> None:
    run_world(_again, size, 4, env=env, init=False)


def _again_in_the_same_store(rank: int, size: int) -> None:
    for i in range(4):
        init_group(store=context().store)
        exchange(None, i)
        sync(f"used{i}")
        dist.destroy_process_group()
        sync(f"destroyed{i}")


@dlslime_only
@all_routes
def test_init_again_in_the_same_store(env: dict[str, str]) -> None:
    run_world(_again_in_the_same_store, 2, env=env, init=False)


def _one_rank_late(rank: int, size: int) -> None:
    """Rank 1 comes to each next life after rank 0 has already sent into the life."""
    for i in range(3):
        if rank == 1 and i > 0:
            await_key(f"sent{i}")
        init_group(store=dist.PrefixStore(f"life{i}", context().store))
        if rank == 0:
            work = dist.isend(pattern(100, i), 1)
            work.wait()
        else:
            received = blank(100)
            dist.recv(received, 0)
            expect_pattern(received, i)
        dist.destroy_process_group()
        if rank == 0 and i < 2:
            tell(f"sent{i + 1}")


@dlslime_only
@all_routes
def test_rank_that_comes_late_to_the_next_life(env: dict[str, str]) -> None:
    run_world(_one_rank_late, 2, env=env, init=False)


def _destroyed_by_a_callback(rank: int, size: int) -> None:
    sent, over = threading.Event(), threading.Event()

    def destroy(_: torch.futures.Future[list[torch.Tensor]]) -> None:
        # The peer's message may arrive before the rank's own send, which needs the group.
        sent.wait(20)
        dist.destroy_process_group()
        over.set()

    for i in range(5):
        sent.clear()
        over.clear()
        init_group(store=dist.PrefixStore(f"life{i}", context().store))
        received = blank(100)
        dist.irecv(received, 1 - rank).get_future().add_done_callback(destroy)
        sync(f"posted{i}")
        dist.isend(pattern(100, i), 1 - rank)
        sent.set()
        assert over.wait(20)
        expect_pattern(received, i)
        sync(f"over{i}")


@dlslime_only
@all_routes
def test_a_callback_may_destroy_the_group(env: dict[str, str]) -> None:
    run_world(_destroyed_by_a_callback, 2, env=env, init=False)


def _growth(rank: int, size: int) -> None:
    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def life(i: int) -> None:
        init_group(store=dist.PrefixStore(f"life{i}", context().store))
        exchange(None, i)
        sync(f"used{i}")
        dist.destroy_process_group()
        sync(f"destroyed{i}")

    for i in range(2):
        life(i)
    before = counts()
    for i in range(2, 12):
        life(i)
    # The thread that reads a group's store ends a moment after the group.
    eventually(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)))


@dlslime_only
@all_routes
def test_descriptors_and_threads_do_not_grow_over_lives(env: dict[str, str]) -> None:
    run_world(_growth, 2, env=env, init=False, fresh=True)


@dlslime_only
@all_routes
def test_restarted_job_in_a_store_with_stale_keys(env: dict[str, str]) -> None:
    """A restart as by torchrun: new processes, with the old processes' keys still in the store."""
    for i in range(3):
        run_world(_stale, 2, i, env=env, fresh=True, world="stale-" + str(sorted(env.items())))


def _stale(rank: int, size: int, attempt: int) -> None:
    exchange(None, attempt)
    group = dist.new_group()
    exchange(group, attempt + 1)
    sync(f"attempt{attempt}")


def _abort_wakes(rank: int, size: int, how: str) -> None:
    if rank == 0:
        woken = []

        def wait(tag: int) -> None:
            with pytest.raises(RuntimeError):
                dist.recv(blank(100), 1, tag=tag)
            woken.append(tag)

        def wait_any() -> None:
            with pytest.raises(RuntimeError):
                dist.recv(blank(100), tag=9)
            woken.append(9)

        threads = [threading.Thread(target=wait, args=(tag,)) for tag in range(3)]
        threads.append(threading.Thread(target=wait_any))
        for thread in threads:
            thread.start()
        large = dist.isend(pattern(2_000_000), 1)
        time.sleep(0.1)
        start = time.monotonic()
        if how == "group":
            dist.group.WORLD.abort()
        elif how == "backend":
            dist.group.WORLD._get_backend(CPU).abort()
        else:
            dist.distributed_c10d._abort_process_group(None)
        for thread in threads:
            thread.join()
        with pytest.raises(RuntimeError):
            large.wait()
        assert time.monotonic() - start < SOON
        assert sorted(woken) == [0, 1, 2, 9]


@dlslime_only
@all_routes
@pytest.mark.parametrize("how", ["group", "backend", "process group"])
def test_abort_wakes_every_waiter(env: dict[str, str], how: str) -> None:
    run_world(_abort_wakes, 2, how, env=env, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _abort_of_one_group(rank: int, size: int) -> None:
    group = dist.new_group()
    exchange(group, 1)
    if rank == 0:
        work = dist.irecv(blank(10), 1, group=group)
        in_world = blank(10)
        other = dist.irecv(in_world, 1)
        group.abort()
        with pytest.raises(RuntimeError):
            work.wait()
        tell("aborted")
        other.wait()
        expect_pattern(in_world, 4)
    else:
        await_key("aborted")
        dist.send(pattern(10, 4), 0)
    sync("done")
    exchange(None, 5)


@dlslime_only
@all_routes
def test_abort_of_one_group_leaves_the_others(env: dict[str, str]) -> None:
    run_world(_abort_of_one_group, 2, env=env, fresh=True)


def _after_abort(rank: int, size: int) -> None:
    dist.group.WORLD.abort()
    with pytest.raises(RuntimeError):
        dist.isend(torch.ones(1), 1 - rank).wait()
    with pytest.raises(RuntimeError):
        dist.irecv(torch.ones(1), 1 - rank).wait()
    with pytest.raises(RuntimeError, match="aborted"):
        dist.all_reduce(torch.ones(1))


@dlslime_only
def test_operations_after_abort_raise() -> None:
    run_world(_after_abort, 2, fresh=True)


def _shutdown_twice(rank: int, size: int) -> None:
    exchange(None)
    dist.barrier()
    backend = dist.group.WORLD._get_backend(CPU)
    backend.shutdown()
    backend.shutdown()
    dist.group.WORLD.shutdown()
    with pytest.raises(RuntimeError):
        dist.isend(torch.ones(1), 1 - rank).wait()


@dlslime_only
@all_routes
def test_shutdown_is_idempotent(env: dict[str, str]) -> None:
    run_world(_shutdown_twice, 2, env=env)


def _destroy_with_pending(rank: int, size: int) -> None:
    """Receives that will never match must not hold up destroy, and must end."""
    works = [dist.irecv(blank(10), 1 - rank, tag=t) for t in range(20)]
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < SOON
    for work in works:
        with pytest.raises(RuntimeError):
            work.wait()


@dlslime_only
@all_routes
def test_destroy_ends_pending_receives(env: dict[str, str]) -> None:
    run_world(_destroy_with_pending, 2, env=env, group_timeout=NEVER, timeout=NEVER)


def _work_outlives_group(rank: int, size: int) -> None:
    received = blank(100)
    work = dist.isend(pattern(100, rank), 1 - rank)
    other = dist.irecv(received, 1 - rank)
    other.wait()
    work.wait()
    sync("done")
    dist.destroy_process_group()
    assert work.is_completed()
    assert other.wait()
    expect_pattern(received, 1 - rank)


@dlslime_only
def test_work_may_outlive_its_group() -> None:
    run_world(_work_outlives_group, 2)


def _early_leaver(rank: int, size: int) -> None:
    """Rank 1 destroys its group right after eager sends; the messages still arrive."""
    if rank == 1:
        for i in range(20):
            dist.send(pattern(500, i), 0)
        dist.destroy_process_group()
        tell("left")
    else:
        await_key("left")
        for i in range(20):
            received = blank(500)
            dist.recv(received, 1)
            expect_pattern(received, i)


@dlslime_only
@all_routes
def test_eager_sends_survive_the_senders_destroy(env: dict[str, str]) -> None:
    run_world(_early_leaver, 2, env=env, sync_end=False)


def _first_use_after_silence(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.irecv(blank(10), 1)
        work2 = dist.isend(pattern(10), 1)
        time.sleep(0.3)
        tell("silent")
        work.wait()
        work2.wait()
    else:
        await_key("silent")
        dist.send(pattern(10), 0)
        dist.recv(blank(10), 0)


@all_routes
def test_peer_that_is_late_by_long(env: dict[str, str]) -> None:
    run_world(_first_use_after_silence, 2, env=env, fresh=True)


def _barrier_before_the_peer_is_there(rank: int, size: int) -> None:
    """Rank 0 waits in its first collective, in the store, before its message is sent."""
    if rank == 0:
        init_group()
        work = dist.isend(pattern(100, 1), 1)
        tell("posted")
        dist.barrier()
        work.wait()
    else:
        await_key("posted")
        time.sleep(0.2)  # rank 0 is in the barrier
        init_group()
        received = blank(100)
        dist.recv(received, 0)
        expect_pattern(received, 1)
        dist.barrier()


@dlslime_only
@all_routes
def test_first_collective_does_not_hold_up_messages(env: dict[str, str]) -> None:
    run_world(_barrier_before_the_peer_is_there, 2, env=env, init=False, group_timeout=20)


def _tiny_timeout(rank: int, size: int) -> None:
    dist.barrier()
    exchange(None)


@all_routes
def test_timeout_of_init_is_accepted_as_timedelta(env: dict[str, str]) -> None:
    run_world(_tiny_timeout, 2, env=env, timeout=60, group_timeout=7.5)


def _timeout_of_new_group(rank: int, size: int) -> None:
    group = dist.new_group(timeout=datetime.timedelta(milliseconds=200))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            dist.recv(blank(10), 1, group=group)
    sync("timed out")
    exchange(None)


@dlslime_only
@all_routes
def test_new_groups_timeout_is_its_own(env: dict[str, str]) -> None:
    run_world(_timeout_of_new_group, 2, env=env)
