"""At a program's end its own hooks find the groups, and peers hear of a death only after."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import dlslime_backend
import pool
from ending import (
    NEVER,
    OWN_STATUS,
    SOON,
    add_up,
    at_the_interpreters_end,
    expect_own_statuses,
    record,
    run_ends,
)
from harness import (
    all_routes,
    await_key,
    dlslime_only,
    init_group,
    sync,
    tell,
)
from patterns import blank, pattern
from test_groups import exchange
from test_one_sided import swap

pytestmark = dlslime_only

CPU = torch.device("cpu")


def _say_goodbye(rank: int, size: int) -> None:
    exchange(None, 3, 100_000)
    add_up()
    dist.barrier()
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), gathered)
    assert gathered is None or gathered == [("from", r) for r in range(size)]
    dist.destroy_process_group()
    print("said goodbye")


class _Owner:
    """An owner for a weakref.finalize()."""


_owner = _Owner()


def _hooked(rank: int, size: int, how: str) -> None:
    """The hook exists before the group, and before any part of the backend is loaded."""
    if how == "atexit":
        atexit.register(_say_goodbye, rank, size)
    elif how == "finalize":
        weakref.finalize(_owner, _say_goodbye, rank, size)
    else:
        atexit.register(_live_in_a_hook, rank, size)
        return
    init_group()
    exchange(None)


def _live_in_a_hook(rank: int, size: int) -> None:
    """Make and use a group while hooks run already, and end without destroy."""
    init_group()
    exchange(None)
    add_up()
    print("said goodbye")


@pytest.mark.parametrize("how", ["atexit", "finalize", "group_of_a_hook"])
def test_hooks_that_were_registered_before_init_find_the_group(how: str) -> None:
    ends = run_ends(_hooked, 2, how, init=False)
    expect_own_statuses(ends)
    assert all("said goodbye" in end.output for end in ends), ends


EARLY = """
import atexit, sys, time

def say_goodbye():
    received = torch.zeros(10)
    if rank == 0:
        dist.send(torch.full((10,), 5.0), 1)
    else:
        dist.recv(received, 0)
        assert received.tolist() == [5.0] * 10
    dist.barrier()
    endpoint.send(torch.full((10,), float(rank))).wait()
    endpoint.recv(received).wait()
    assert received.tolist() == [1.0 - rank] * 10
    endpoint.close()
    if rank == 0:
        visitor.send(torch.full((10,), 7.0)).wait()
        visitor.close()
    else:
        while not (guests := hub.accept()):
            time.sleep(0.001)
        guests[0].recv(received).wait()
        assert received.tolist() == [7.0] * 10
        hub.close()
    dist.destroy_process_group()
    print("said goodbye")

atexit.register(say_goodbye)
import torch, torch.distributed as dist, dlslime_backend
rank, port, world = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
signals = dist.PrefixStore(world, dist.TCPStore("127.0.0.1", port, is_master=False))
store = dist.PrefixStore(world, dist.TCPStore("127.0.0.1", port, is_master=False))
dist.init_process_group("dlslime", store=store, rank=rank, world_size=2)
endpoint = dlslime_backend.Endpoint()
signals.set(f"endpoint {rank}", endpoint.address.hex())
endpoint.connect(bytes.fromhex(signals.get(f"endpoint {1 - rank}").decode()))
if rank == 0:
    visitor = dlslime_backend.Endpoint()
    visitor.connect(bytes.fromhex(signals.get("hub").decode()))
else:
    hub = dlslime_backend.Hub()
    signals.set("hub", hub.address.hex())
sys.exit(40 + rank)
"""


def test_hook_that_is_older_than_any_import_finds_group_endpoints_and_hub() -> None:
    port, world = str(pool.store_port()), pool.unique_world()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EARLY, str(rank), port, world],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=NEVER)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [40, 41], outputs
    assert all("said goodbye" in output for output in outputs), outputs


def _linger() -> None:
    """Let the interpreter's end take long, as in a large program; the sockets close after."""
    time.sleep(1.5)
    tell("interpreter has ended", repr(time.time()))


def _culprit(rank: int, size: int) -> None:
    """Rank 2 raises while the other ranks wait for rank 2 in every possible way."""
    exchange(None)
    groups = [dist.new_group() for _ in range(3)]
    for group in groups:
        add_up(group)
    memory = blank(100)
    region = dlslime_backend.register(memory)
    endpoints = [dlslime_backend.Endpoint(f"end {i}") for i in range(2)]
    if rank == 2:
        for i, endpoint in enumerate(endpoints):
            endpoint.connect(swap("endpoint", endpoint.address, i))
            endpoint.send(pattern(10)).wait()
        sync("waiting")
        time.sleep(0.2)
        at_the_interpreters_end(_linger)
        raise ValueError("rank 2 is the culprit")
    endpoint = endpoints[0]
    endpoint.connect(swap("endpoint", endpoint.address, 2))
    endpoint.recv(blank(10)).wait()
    peer = dlslime_backend.peer(2)
    calls: dict[str, Callable[[], Any]] = {
        "recv": lambda: dist.recv(blank(10), 2, tag=3),
        "send": lambda: dist.send(pattern(2_000_000), 2, tag=4),
        "expect_imm": lambda: peer.expect_imm().wait(),
        "endpoint": lambda: endpoint.recv(blank(10)).wait(),
        "all_reduce": lambda: dist.all_reduce(torch.ones(3), group=groups[0]),
        "barrier": lambda: dist.barrier(groups[1]),
        "broadcast": lambda: dist.broadcast(torch.ones(3), 2, group=groups[2]),
    }
    news: dict[str, tuple[float, str]] = {}
    threads = [
        threading.Thread(target=record, args=(call, what, news)) for what, call in calls.items()
    ]
    for thread in threads:
        thread.start()
    sync("waiting")
    ended = float(await_key("interpreter has ended"))
    for thread in threads:
        thread.join(SOON)
    assert news.keys() == calls.keys(), "some learn nothing"
    for what, (when, text) in news.items():
        assert "Error" in text, f"{what}: {text}"
        assert when >= ended, f"{what} failed {ended - when:.3f} s before the death: {text}"
        for untrue in ("was shut down", "has been closed", "has left"):
            assert untrue not in text, f"{what}: {text}"
    del region


@all_routes
def test_no_rank_hears_of_a_death_before_it(env: dict[str, str]) -> None:
    ends = run_ends(_culprit, 3, env=env, group_timeout=NEVER)
    expect_own_statuses(ends, [OWN_STATUS, OWN_STATUS + 1, 1])
    assert "rank 2 is the culprit" in ends[2].output


def _spawned(rank: int, port: int, world: str) -> None:
    clients = [dist.TCPStore("127.0.0.1", port, is_master=False) for _ in range(2)]
    store = dist.PrefixStore(world, clients[0])
    dist.init_process_group("dlslime", store=store, rank=rank, world_size=3)
    received = torch.zeros(1)
    if rank == 2:
        for other in range(2):
            dist.send(received, other)
        clients[1].wait([f"{world}/{other} waits" for other in range(2)])
        at_the_interpreters_end(lambda: time.sleep(1.5))
        raise ValueError("rank 2 is the culprit")
    dist.recv(received, 2)
    clients[1].set(f"{world}/{rank} waits", "1")
    dist.recv(received, 2)


def test_spawn_blames_the_rank_that_raised() -> None:
    with pytest.raises(mp.ProcessRaisedException, match="rank 2 is the culprit") as raised:
        mp.spawn(_spawned, (pool.store_port(), pool.unique_world()), 3)
    assert raised.value.error_index == 2
