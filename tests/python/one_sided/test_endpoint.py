"""Endpoints: pairs of processes without a process group."""

import contextlib
import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import (
    ROUTE,
    all_routes,
    await_death,
    await_key,
    dlslime_only,
    keep,
    run_world,
    stopped,
    sync,
    tell,
)
from patterns import blank, expect, expect_pattern, pattern
from test_one_sided import NBYTES, Side, swap

pytestmark = dlslime_only

LARGE = 3 << 20
endpoint_routes = all_routes


def met(
    rank: int,
    key: str = "endpoint",
    other: int | None = None,
    connects: bool = True,
    kept: bool = True,
    **options: Any,
) -> dlslime_backend.Endpoint:
    """Make an endpoint connected to the endpoint of the other rank, or of rank `other`.

    An endpoint that is not `kept` ends when dropped, even if another rank still needs it.
    """
    endpoint = dlslime_backend.Endpoint(f"{key} of {rank}", **options)
    if kept:
        keep(endpoint)
    address = swap(f"address of {key}", endpoint.address, 1 - rank if other is None else other)
    assert len(address) < 1000
    if connects:
        endpoint.connect(address)
    return endpoint


def _transfers(rank: int, size: int, active: int, both_connect: bool) -> None:
    """Rank `active` reads and writes; the other rank makes no calls meanwhile."""
    endpoint = met(rank, connects=both_connect or rank == active)
    side = Side(endpoint, 1 - rank)
    if rank == active:
        side.read([(0, 100, 50)]).wait()
        side.write([(0, 0, 50), (60, 200, 20)]).wait()
    sync("moved")
    first, ours = pattern(NBYTES, 1 - active), pattern(NBYTES, active)
    if rank == active:
        ours[:50] = first[100:150]
        expect(side.memory, ours)
    else:
        first[200:220] = ours[60:80]
        first[:50] = first[100:150].clone()
        expect(side.memory, first)


@endpoint_routes
@pytest.mark.parametrize("active", [0, 1])
@pytest.mark.parametrize("both_connect", [False, True], ids=["one_connects", "both_connect"])
def test_either_end_reads_and_writes(env: dict[str, str], both_connect: bool, active: int) -> None:
    run_world(_transfers, 2, active, both_connect, env=env, init=False)


def _both_ways(rank: int, size: int) -> None:
    endpoint = met(rank)
    assert endpoint.route() == os.environ.get("DLSLIME_ROUTE", ROUTE)
    side = Side(endpoint, 1 - rank, 2 * LARGE)
    half = LARGE * rank
    received = blank(LARGE)
    transfers = [
        side.write([(half, half, LARGE)]),
        endpoint.send(pattern(LARGE, rank), tag=rank),
        endpoint.recv(received, tag=1 - rank),
    ]
    for transfer in transfers:
        transfer.wait()
    expect_pattern(received, 1 - rank)
    sync("written")
    expected = pattern(2 * LARGE, rank)
    other = slice(LARGE * (1 - rank), LARGE * (2 - rank))
    expected[other] = pattern(2 * LARGE, 1 - rank)[other]
    expect(side.memory, expected)


@endpoint_routes
def test_both_ends_write_and_send_at_once(env: dict[str, str]) -> None:
    run_world(_both_ways, 2, env=env, init=False)


def _immediates(rank: int, size: int) -> None:
    with met(rank) as endpoint:
        side = Side(endpoint, 1 - rank)
        for i in range(10):
            if rank == i % 2:
                endpoint.write_with_imm(side.region, side.remote, [(i, i, 1)], imm=i).wait()
            else:
                assert endpoint.expect_imm().wait() == i
                assert side.memory[i] == pattern(NBYTES, 1 - rank)[i]
        sync("told")  # a close would end operations under way


@endpoint_routes
def test_immediates_go_to_and_fro(env: dict[str, str]) -> None:
    run_world(_immediates, 2, env=env, init=False)


def _several(rank: int, size: int, count: int) -> None:
    """Endpoints between two processes have separate messages and immediates."""
    endpoints = [met(rank, f"endpoint {i}") for i in range(count)]
    side = Side(endpoints[0], 1 - rank)
    if rank == 0:
        for i, endpoint in enumerate(endpoints):
            endpoint.write_with_imm(side.region, side.remote, [(i, i, 1)], imm=i).wait()
            endpoint.send(pattern(64, i)).wait()
    else:
        for i in reversed(range(count)):
            received = blank(64)
            endpoints[i].recv(received).wait()
            expect_pattern(received, i)
            assert endpoints[i].expect_imm().wait() == i
        expect(side.memory[:count], pattern(NBYTES, 0)[:count])
    endpoints[0].close()
    sync("one is closed")
    if rank == 0:
        endpoints[1].read(side.region, side.remote).wait()
        expect(side.memory[count:], pattern(NBYTES, 1)[count:])
    sync("read")


@endpoint_routes
def test_several_endpoints_between_two_processes_are_independent(env: dict[str, str]) -> None:
    run_world(_several, 2, 5, env=env, init=False)


def _to_itself(rank: int, size: int) -> None:
    one, two = dlslime_backend.Endpoint("one"), dlslime_backend.Endpoint("two")
    one.connect(two.address)
    two.connect(one.address)
    assert (one.route(), two.route()) == ("self", "self")
    memory, target, received = pattern(LARGE, 1), blank(LARGE), blank(LARGE)
    region, remote = dlslime_backend.register(target), dlslime_backend.register(memory)
    one.read(region, dlslime_backend.import_region(remote.export())).wait()
    expect_pattern(target, 1)
    two.write(region, dlslime_backend.import_region(remote.export()), [(9, 0, 5)]).wait()
    expect(memory[:5], pattern(LARGE, 1)[9:14])
    receive = two.recv(received)
    one.send(pattern(LARGE, 2)).wait()
    receive.wait()
    expect_pattern(received, 2)
    one.close()
    with pytest.raises(dist.DistBackendError, match="has been closed"):
        two.recv(received).wait()


def test_endpoints_of_one_process_reach_each_other_by_the_self_route() -> None:
    run_world(_to_itself, 1, init=False)


def _beside_a_group(rank: int, size: int) -> None:
    endpoint = met(rank)
    side = Side(endpoint, 1 - rank)
    received = blank(100)
    transfer = side.read([(0, 0, 10)])
    send = endpoint.send(blank(3))  # not for the group
    dist.send(pattern(100, rank), 1 - rank)
    dist.recv(received, 1 - rank)
    send.wait()
    transfer.wait()
    dist.barrier()
    expect_pattern(received, 1 - rank)
    endpoint.close()
    dist.barrier()


@endpoint_routes
def test_endpoints_work_beside_a_group(env: dict[str, str]) -> None:
    run_world(_beside_a_group, 2, env=env)


def _dtypes(rank: int, size: int) -> None:
    endpoint = met(rank)
    for i, dtype in enumerate(DTYPES):
        tensor = pattern(24, i).clamp(max=1).to(dtype).reshape(2, 3, 4)
        if rank == 0:
            endpoint.send(tensor, i).wait()
        else:
            received = torch.zeros_like(tensor)
            endpoint.recv(received, i).wait()
            assert torch.equal(received, tensor), dtype


DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
]


@endpoint_routes
def test_tensors_of_many_dtypes_are_sent_and_received(env: dict[str, str]) -> None:
    run_world(_dtypes, 2, env=env, init=False)


def _closed(rank: int, size: int) -> None:
    """Rank 1 closes; rank 0's waits end, and so do operations begun later."""
    endpoint = met(rank)
    side = Side(endpoint, 1 - rank)
    if rank == 0:
        side.read([(0, 0, 8)]).wait()
        waiting = [endpoint.recv(blank(8)), endpoint.expect_imm()]
    sync("waiting")
    if rank == 1:
        for _ in range(3):
            endpoint.close()
        for begin in [lambda: side.read(), lambda: endpoint.send(blank(8)), endpoint.route]:
            with pytest.raises(ValueError, match="has been closed"):
                begin()
    sync("closed")
    if rank == 0:
        for transfer in waiting:
            with pytest.raises(dist.DistBackendError, match="has been closed"):
                transfer.wait()
        with pytest.raises(dist.DistBackendError, match="has been closed"):
            endpoint.recv(blank(8)).wait()
        with pytest.raises(dist.DistBackendError, match="has been closed"):
            side.read().wait()


@endpoint_routes
def test_close_ends_what_the_peer_waits_for(env: dict[str, str]) -> None:
    run_world(_closed, 2, env=env, init=False)


def _closed_at_once(rank: int, size: int) -> None:
    """Rank 1 closes before rank 0 begins anything: no connection is ever made."""
    endpoint = met(rank)
    if rank == 1:
        endpoint.close()
    sync("closed")
    if rank == 0:
        for begin in [endpoint.recv, endpoint.send]:
            with pytest.raises(dist.DistBackendError):
                begin(blank(8)).wait(10)  # not after the time-out


@endpoint_routes
def test_operations_with_a_peer_that_has_closed_before_fail_soon(env: dict[str, str]) -> None:
    run_world(_closed_at_once, 2, env=env, init=False)


def _dropped(rank: int, size: int) -> None:
    endpoint = met(rank, kept=False)
    if rank == 0:
        waiting = endpoint.recv(blank(8))
        sync("waiting")
        with pytest.raises(dist.DistBackendError, match="has been closed"):
            waiting.wait()
    else:
        assert endpoint.route()
        sync("waiting")
        del endpoint


@endpoint_routes
def test_endpoint_that_is_dropped_is_closed(env: dict[str, str]) -> None:
    run_world(_dropped, 2, env=env, init=False)


def _ends(rank: int, size: int, killed: bool) -> None:
    side = Side(met(rank), 1 - rank, 64 << 20)
    if rank == 1:
        await_key("reading")
        os.kill(os.getpid(), signal.SIGKILL) if killed else os._exit(0)
    side.read([(0, 0, 8)]).wait()
    transfers = [side.read() for _ in range(30)] + [side.peer.expect_imm()]
    tell("reading")
    for transfer in transfers[:-1]:
        with contextlib.suppress(dist.DistBackendError):  # the transfer was faster
            transfer.wait()
    for late in [transfers[-1], side.read(), side.peer.recv(blank(8))]:
        with pytest.raises(dist.DistBackendError):
            late.wait()


@endpoint_routes
@pytest.mark.parametrize("killed", [False, True], ids=["exits", "is_killed"])
def test_operations_fail_when_the_peers_process_ends(env: dict[str, str], killed: bool) -> None:
    run_world(_ends, 2, killed, env=env, init=False, may_die=[1])


def _replaced(rank: int, size: int) -> None:
    """Rank 1 ends and rank 2 replaces rank 1: rank 0 still has the handle of rank 1."""
    if rank > 0:
        side = Side(met(rank, other=0), 0)
        if rank == 1:
            os._exit(0)
        await_key("over")
        side.region.deregister()
        return
    old = Side(met(rank, other=1), 1)
    await_death(1)
    new = Side(met(rank, other=2), 2)
    pids = f"(?s)of pid {old.remote.pid} on .*the peer is pid {new.remote.pid} on .*has ended"
    with pytest.raises(ValueError, match=pids):
        new.peer.read(new.region, old.remote).wait()
    new.read().wait()
    expect_pattern(new.memory, 2)
    tell("over")


@endpoint_routes
def test_handle_of_a_process_that_was_replaced_is_refused(env: dict[str, str]) -> None:
    run_world(_replaced, 3, env=env, init=False, may_die=[1])


def _never_appears(rank: int, size: int) -> None:
    """Rank 1 has published its address, but does not answer."""
    side = Side(met(rank, timeout=0.2), 1 - rank)
    if rank == 1:
        await_key("over")
        return
    received = blank(8)
    with stopped(1):
        for transfer in [side.read(), side.peer.recv(received)]:
            with pytest.raises(TimeoutError):
                transfer.wait(0.05)
        with pytest.raises((TimeoutError, dist.DistBackendError), match="(?i)time"):
            side.read().wait()  # the endpoint's time-out
    expect_pattern(side.memory, 0)
    tell("over")
    expect(received, blank(8))


@endpoint_routes
def test_peer_that_never_appears_times_out(env: dict[str, str]) -> None:
    run_world(_never_appears, 2, env=env, init=False, fresh=True)


def _refusals(rank: int, size: int) -> None:
    endpoint, memory = dlslime_backend.Endpoint(), pattern(8)
    region = dlslime_backend.register(memory)
    remote = dlslime_backend.import_region(region.export())
    for begin in [lambda: endpoint.read(region, remote), endpoint.expect_imm, endpoint.route]:
        with pytest.raises(ValueError, match="not connected"):
            begin()
    address = dlslime_backend.Endpoint().address
    for garbage in [b"", b"garbage" * 20, address[:-1], address + b"x", region.export()]:
        with pytest.raises(ValueError, match="dlslime: the address"):
            endpoint.connect(garbage)
    with pytest.raises(ValueError, match="to itself"):
        endpoint.connect(endpoint.address)
    other = dlslime_backend.Endpoint()
    endpoint.connect(other.address)
    endpoint.connect(other.address)  # the same peer again
    with pytest.raises(ValueError, match="connected already"):
        endpoint.connect(dlslime_backend.Endpoint().address)
    with pytest.raises(ValueError, match=r"nonsense.*auto\|gloo\|rdma\|shm\|tcp"):
        dlslime_backend.Endpoint(route="nonsense")
    endpoint.read(region, remote).wait()  # no refusal has broken the endpoint


def test_wrong_addresses_and_unconnected_endpoints_are_refused() -> None:
    run_world(_refusals, 1, init=False)
