"""Cores: all ranks on one core, and no core used while idle."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, init_group, run_world, sync, tell
from patterns import blank, expect_pattern, pattern
from test_groups import exchange


def _on_one_core(rank: int, size: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before the engine has threads
    init_group()
    exchange(None, 1)
    tensor = torch.zeros(8)
    for _ in range(200):
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
    for i in range(3):
        exchange(None, i, 8 << 20)
    following, previous = (rank + 1) % size, (rank - 1) % size
    received = [blank(16384) for _ in range(300)]
    ops = [dist.P2POp(dist.isend, pattern(16384, i + rank), following) for i in range(300)]
    ops += [dist.P2POp(dist.irecv, t, previous) for t in received]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for i, received_tensor in enumerate(received):
        expect_pattern(received_tensor, i + previous)
    dist.barrier()


@all_routes
@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_on_one_core(env: dict[str, str], size: int) -> None:
    run_world(_on_one_core, size, env=env, init=False, fresh=True)


def _cpu_share(seconds: float) -> float:
    start, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - start)


def _idle(rank: int, size: int) -> tuple[float, float]:
    after_init = _cpu_share(0.7)
    exchange(None, 1)
    exchange(None, 2, 3 << 20)
    sync("used")
    time.sleep(0.05)  # spinning ends some microseconds after the last message
    return after_init, _cpu_share(0.7)


@all_routes
def test_idle_group_uses_no_cpu(env: dict[str, str]) -> None:
    for shares in run_world(_idle, 2, env=env, fresh=True):
        assert max(shares) < 0.05, f"of a core: {shares}"


def _blocked(rank: int, size: int) -> float:
    """One rank waits in recv for a late message."""
    exchange(None)
    if rank == 0:
        start, used = time.monotonic(), time.process_time()
        tell("waiting")
        dist.recv(blank(10), 1)
        return (time.process_time() - used) / (time.monotonic() - start)
    await_key("waiting")
    time.sleep(1)
    dist.send(pattern(10), 0)
    return 0.0


@all_routes
def test_blocked_receive_does_not_spin(env: dict[str, str]) -> None:
    share = run_world(_blocked, 2, env=env, fresh=True)[0]
    assert share < 0.1, f"{share} of a core while waiting"


def _pending(rank: int, size: int) -> float:
    """Operations are pending with no thread in a call of the backend."""
    exchange(None)
    if rank == 0:
        works = [dist.irecv(blank(10), 1, tag=t) for t in range(50)]
        works += [dist.isend(pattern(1 << 20), 1, tag=t) for t in range(5)]
        time.sleep(0.05)
        share = _cpu_share(0.7)
        tell("measured")
        for work in works:
            work.wait()
        return share
    await_key("measured")
    for tag in range(50):
        dist.send(pattern(10), 0, tag=tag)
    for tag in range(5):
        dist.recv(blank(1 << 20), 0, tag=tag)
    return 0.0


@dlslime_only
@all_routes
def test_pending_operations_use_no_cpu(env: dict[str, str]) -> None:
    share = run_world(_pending, 2, env=env, fresh=True)[0]
    assert share < 0.05, f"{share} of a core while nothing happens"
