"""Ends, and rest, of pairs over TCP: deaths, closing in the middle, idleness, new lives."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
import torch.distributed as dist

import dlslime_backend
from harness import await_death, await_key, dlslime_only, run_world, send_signal, sync, tell
from patterns import blank, expect_pattern, pattern
from test_cores import _cpu_share as cpu_share
from test_endpoint import met
from test_one_sided import Side
from test_without_nic import LARGE, MEBI, SOON, Place, hosts, places

pytestmark = dlslime_only


def _killed(rank: int, size: int, large: int) -> None:
    """Rank 1 dies while rank 0 reads, writes, sends and waits; rank 0 goes on with rank 2."""
    if rank > 0:
        side = Side(met(rank, f"endpoint {rank}", other=0), 0, large)
        await_key("never" if rank == 1 else "over", 60)
        side.region.deregister()
        return
    doomed = Side(met(rank, "endpoint 1", other=1), 1, large)
    other = Side(met(rank, "endpoint 2", other=2), 2, large)
    doomed.read([(0, 0, 8)]).wait()
    other.read([(0, 0, 8)]).wait()
    going = [doomed.read(), doomed.write([(0, 0, large // 2)]), doomed.peer.send(blank(large))]
    waiting = [doomed.peer.recv(blank(8)), doomed.peer.expect_imm()]
    beside = other.read()
    send_signal(1, signal.SIGKILL)
    begun = time.monotonic()
    for transfer in going:
        with contextlib.suppress(dist.DistBackendError):  # the transfer was faster
            transfer.wait()
    for transfer in [*waiting, doomed.read(), doomed.peer.send(blank(8))]:
        with pytest.raises(dist.DistBackendError):
            transfer.wait()
    assert time.monotonic() - begun < SOON
    await_death(1)
    beside.wait()
    expect_pattern(other.memory, 2)
    other.write([(0, 0, 100)]).wait()
    tell("over")


@places
def test_peer_that_is_killed_in_the_middle_fails_its_transfers_alone(place: Place) -> None:
    run_world(_killed, 3, LARGE, env=place(3), init=False, may_die=[1])


def _closed(rank: int, size: int, closing: int) -> None:
    """One end closes while both move much; another endpoint of the pair goes on."""
    peer, other = (met(rank, f"endpoint {i}") for i in range(2))
    side, read = Side(peer, 1 - rank, 8 * MEBI), blank(8 * MEBI)
    target = dlslime_backend.register(read)
    for endpoint in (peer, other):
        endpoint.read(target, side.remote, [(0, 0, 8)]).wait()
    sync("connected")
    going = [peer.read(target, side.remote) for _ in range(20)]
    going += [peer.send(pattern(MEBI, i), tag=i) for i in range(20)]
    beside = other.read(target, side.remote)
    if rank == closing:
        peer.close()
    begun = time.monotonic()
    for transfer in going:
        with contextlib.suppress(dist.DistBackendError, ValueError):
            transfer.wait()
    assert time.monotonic() - begun < SOON
    with pytest.raises((dist.DistBackendError, ValueError), match="has been closed"):
        peer.recv(blank(8), tag=99).wait()
    beside.wait()
    expect_pattern(read, 1 - rank)
    target.deregister()
    sync("seen")


@places
@pytest.mark.parametrize("closing", [0, 1])
def test_close_in_the_middle_ends_one_endpoint_alone(place: Place, closing: int) -> None:
    run_world(_closed, 2, closing, env=place(2), init=False)


def _idle(rank: int, size: int) -> float:
    endpoints = [met(rank, f"endpoint {i}") for i in range(5)]
    for endpoint in endpoints:
        side = Side(endpoint, 1 - rank, 3 * MEBI)
        side.read().wait()
    waiting = endpoints[0].recv(blank(8), tag=1)
    sync("used")
    time.sleep(0.05)  # spinning ends some microseconds after the last message
    share = cpu_share(1.0)
    sync("watched")
    endpoints[0].send(blank(8), tag=1).wait()
    waiting.wait()
    sync("woken")
    return share


@places
def test_idle_pair_uses_no_cpu(place: Place) -> None:
    for share in run_world(_idle, 2, env=place(2), init=False, fresh=True):
        assert share < 0.05, f"{share:.3f} of a core"


def _descriptors(rank: int, size: int) -> None:
    """Pairs that end leave no socket."""
    kept = met(rank, "kept")
    kept.route()

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    sync("first")
    before = count()
    for i in range(20):
        with met(rank, f"endpoint {i}") as endpoint:
            endpoint.route()
            sync(f"met {i}")
    assert count() <= before + 2, f"{before} descriptors, now {count()}"
    sync("counted")


def test_endpoints_of_a_pair_share_its_sockets() -> None:
    run_world(_descriptors, 2, env=hosts(2), init=False, fresh=True)


def _again_and_again(rank: int, size: int, times: int) -> None:
    """Each life of the pair has a new engine, so that its sockets are opened anew."""
    for i in range(times):
        endpoint = met(rank, f"endpoint {i}", kept=False)
        received = blank(1000)
        receive = endpoint.recv(received)
        send = endpoint.send(pattern(1000, i))
        if i % 3 == rank:
            endpoint.close()  # while the sockets are opened, or later
        for transfer in (send, receive):
            with contextlib.suppress(dist.DistBackendError, ValueError):
                transfer.wait(SOON)
        if i % 3 == 2:
            expect_pattern(received, i)
        sync(f"through {i}")
        endpoint.close()
        del endpoint


@places
def test_pair_that_is_closed_at_any_time_meets_again(place: Place) -> None:
    run_world(_again_and_again, 2, 40, env=place(2), init=False, fresh=True)
