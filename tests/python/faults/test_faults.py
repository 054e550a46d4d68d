"""Peers that die, leave or fall silent: which ranks notice, how soon, and which go on."""

import contextlib
import datetime
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from harness import (
    PATIENCE,
    all_routes,
    await_death,
    await_key,
    dlslime_only,
    run_world,
    stopped,
    sync,
    tell,
)
from patterns import blank, expect_pattern, pattern
from polling import eventually

pytestmark = dlslime_only

LARGE = 128 << 20
DEATH_SECONDS = 5.0 * PATIENCE  # usually below one second; a busy machine may be slow to schedule


def _kill_myself_in(seconds: float) -> None:
    def kill() -> None:
        time.sleep(seconds)
        tell("killed at", repr(time.time()))  # a common clock, also on the lab's nodes
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()


def _expect_death_of(victim: int, works: list[dist.Work], record: str) -> None:
    """Check that every work ends, that failures name the victim, and that the last work fails."""
    failures = []
    for work in works:
        try:
            work.wait()
        except dist.DistBackendError as error:
            failures.append(str(error))
    noticed = time.time() - float(await_key("killed at"))
    print(f"{record}: {noticed:.3f} s after the death")
    assert failures, "the dead peer's operations succeeded"
    for text in failures:
        assert f"rank {victim}" in text, text
    assert noticed < DEATH_SECONDS


def _talk(rank: int, other: int, until: str) -> int:
    """Exchange messages with `other` (the lower rank leads) until the key `until` is told."""
    rounds = 0
    going = torch.ones(1)
    while going.item():
        if rank < other:
            if rounds % 20 == 0 and dist_key_told(until):
                going.zero_()
            dist.send(going, other, tag=50)
            dist.recv(torch.empty(1000), other, tag=51)
        else:
            dist.recv(going, other, tag=50)
            dist.send(torch.empty(1000), other, tag=51)
        rounds += 1
    return rounds


def dist_key_told(key: str) -> bool:
    """Tell whether some rank has told `key`, without waiting."""
    from harness import context

    return context().control.check([key])


def _victim_in_transfer(rank: int, size: int, victim_sends: bool) -> None:
    """Rank 1 dies in the middle of 128 MiB messages with rank 0; ranks 0 and 2 talk on."""
    data = torch.zeros(LARGE, dtype=torch.uint8) if rank < 2 else None
    for other in {0, 1, 2} - {rank}:  # connects all pairs before the death
        dist.isend(torch.ones(1), other, tag=9)
    for other in {0, 1, 2} - {rank}:
        dist.recv(torch.ones(1), other, tag=9)
    sync("ready")
    if rank == 1:
        operation = dist.isend if victim_sends else dist.irecv
        works = [operation(data, 0, tag=i) for i in range(40)]
        _kill_myself_in(0.15)
        for work in works:
            work.wait()
        time.sleep(60)
    if rank == 2:
        _talk(2, 0, "noticed")
        return
    operation = dist.irecv if victim_sends else dist.isend
    # One operation more than rank 1 posts: at least the last fails, however late rank 1 dies.
    works = [operation(data, 1, tag=i) for i in range(41)]
    talker = threading.Thread(target=_talk, args=(0, 2, "noticed"))
    talker.start()
    _expect_death_of(1, works, "128 MiB transfer")
    tell("noticed")
    talker.join()
    for late in (dist.isend, dist.irecv):
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            late(torch.ones(1), 1).wait()


@all_routes
@pytest.mark.parametrize("victim_sends", [True, False])
def test_kill_in_a_transfer_raises_soon_and_others_go_on(
    env: dict[str, str], victim_sends: bool
) -> None:
    run_world(_victim_in_transfer, 3, victim_sends, env=env, may_die=[1], timeout=90)


def _idle_receives(rank: int, size: int) -> None:
    """No message is under way: posted receives and unmatched sends must learn of the death."""
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        await_key("posted")
        _kill_myself_in(0)
        time.sleep(60)
    dist.send(torch.ones(1), 1)
    works = [dist.irecv(blank(10), 1, tag=t) for t in range(3)]
    works.append(dist.isend(pattern(2_000_000), 1, tag=3))
    tell("posted")
    _expect_death_of(1, works, "idle")
    for work in works:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            work.wait()
        assert work.is_completed()


@all_routes
def test_kill_of_a_silent_peer_raises_soon(env: dict[str, str]) -> None:
    run_world(_idle_receives, 2, env=env, may_die=[1])


def _killed_while_polled(rank: int, size: int) -> None:
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        await_key("posted")
        _kill_myself_in(0)
        time.sleep(60)
    dist.send(torch.ones(1), 1)
    work = dist.irecv(blank(10), 1)
    tell("posted")
    eventually(work.is_completed)
    assert not work.is_success()
    _expect_death_of(1, [work], "polled")


@all_routes
def test_poller_learns_of_the_death(env: dict[str, str]) -> None:
    run_world(_killed_while_polled, 2, env=env, may_die=[1])


def _any_source_survives(rank: int, size: int) -> None:
    """A receive from any source goes on while a possible sender is left."""
    if rank == 1:
        dist.send(torch.ones(1), 0, tag=1)
        await_key("posted")
        _kill_myself_in(0)
        time.sleep(60)
    if rank == 0:
        dist.recv(torch.ones(1), 1, tag=1)
        received = blank(100)
        work = dist.irecv(received)
        directed = dist.irecv(blank(100), 1)
        tell("posted")
        _expect_death_of(1, [directed], "any source")
        tell("noticed")
        work.wait()
        assert work._source_rank() == 2
        expect_pattern(received, 2)
    else:
        await_key("noticed")
        dist.send(pattern(100, 2), 0)


@all_routes
def test_any_source_receive_survives_one_senders_death(env: dict[str, str]) -> None:
    run_world(_any_source_survives, 3, env=env, may_die=[1])


def _normal_exit(rank: int, size: int, destroys: bool) -> None:
    """Rank 1 sends, leaves and ends; only then rank 0 receives."""
    if rank == 1:
        for i in range(30):
            dist.send(pattern(1000, i), 0)
        if destroys:
            dist.destroy_process_group()
        os._exit(0)
    await_death(1)
    for i in range(30):
        received = blank(1000)
        dist.recv(received, 1)
        expect_pattern(received, i)
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.recv(blank(10), 1)


@all_routes
def test_eager_sends_arrive_after_their_senders_exit(env: dict[str, str]) -> None:
    run_world(_normal_exit, 2, True, env=env, may_die=[1])


@pytest.mark.parametrize("copies", ["auto", "off"])
def test_eager_sends_through_memory_outlive_a_process_that_just_ends(copies: str) -> None:
    run_world(_normal_exit, 2, False, env={"DLSLIME_CMA": copies}, may_die=[1])


def _destroy_after_death(rank: int, size: int) -> float:
    dist.barrier()
    dist.isend(torch.ones(1), 1 - rank)
    dist.recv(torch.ones(1), 1 - rank)
    sync("connected")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await_death(1)
    with pytest.raises(RuntimeError):
        dist.recv(blank(10), 1)
    start = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - start


@all_routes
def test_destroy_does_not_hang_after_a_death(env: dict[str, str]) -> None:
    assert run_world(_destroy_after_death, 2, env=env, may_die=[1])[0] < DEATH_SECONDS


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def _crash(rank: int, size: int) -> None:
    works = [dist.isend(torch.zeros(LARGE, dtype=torch.uint8), 1 - rank) for _ in range(2)]
    received = torch.zeros(LARGE, dtype=torch.uint8)
    works += [dist.irecv(received, 1 - rank), dist.irecv(received, 1 - rank)]
    with contextlib.suppress(dist.DistBackendError):  # the other rank was faster
        works[2].wait()
    os.kill(os.getpid(), signal.SIGKILL)


@all_routes
def test_crash_leaves_nothing_in_dev_shm(env: dict[str, str]) -> None:
    before = _shared_memory()
    run_world(_crash, 2, env=env, may_die=[0, 1])
    left = _shared_memory() - before
    # Files put into the folder by other programs meanwhile disappear again.
    eventually(lambda: not left & _shared_memory())


def _stopped_peer(rank: int, size: int) -> None:
    """A stopped (not dead) peer is waited for, until the group's time-out."""
    if rank == 1:
        dist.send(torch.ones(1), 0)
        await_key("resumed")  # longer than the time-out of a receive
        dist.recv(blank(100), 0, tag=1)
        dist.send(pattern(100, 3), 0, tag=2)
        return
    dist.recv(torch.ones(1), 1)
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=1))
    with stopped(1):
        work = dist.irecv(blank(100), 1, tag=2)
        large = dist.isend(pattern(2_000_000), 1, tag=3)
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            large.wait()
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            work.wait()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=30))
    tell("resumed")
    dist.send(pattern(100, 1), 1, tag=1)
    received = blank(100)
    dist.recv(received, 1, tag=2)
    expect_pattern(received, 3)


@all_routes
def test_stopped_peer_times_out_and_comes_back(env: dict[str, str]) -> None:
    run_world(_stopped_peer, 2, env=env, fresh=True)
