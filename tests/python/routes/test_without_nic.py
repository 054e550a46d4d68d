"""Pairs without shared memory, RDMA network and process group, which go over TCP."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect, expect_pattern, pattern
from test_endpoint import met
from test_hub import _hub as hub_of_many
from test_one_sided import NBYTES, Side
from test_threads import run_threads

pytestmark = dlslime_only

MEBI = 1 << 20
LARGE = 64 * MEBI
SOON = 20  # seconds until a death is known: much less than any time-out of the tests
NO_NIC = {"DLSLIME_RDMA": "off", "DLSLIME_LOG": "warn", "DLSLIME_FALLBACK": "warn"}


def hosts(count: int, **more: str) -> list[dict[str, str]]:
    """Return an environment for each rank, on a host of its own without RDMA."""
    env = {**NO_NIC, "DLSLIME_SOCKET_IFNAME": "=lo", **more}
    return [{**env, "DLSLIME_HOSTID": f"host {i}"} for i in range(count)]


def one_host(count: int, **more: str) -> list[dict[str, str]]:
    """Return environments for one host on which ranks may not share memory."""
    return [{**NO_NIC, "DLSLIME_SHM": "off", **more}] * count


Place = Callable[[int], list[dict[str, str]]]
places = pytest.mark.parametrize("place", [hosts, one_host], ids=["hosts", "one_host"])


def _transfers(rank: int, size: int) -> None:
    endpoint = met(rank)
    assert endpoint.route() == "tcp"
    side, received = Side(endpoint, 1 - rank), blank(100)
    if rank == 0:
        side.read([(0, 100, 50)]).wait()
        side.write([(60, 200, 20), (0, 0, 0)]).wait()
        endpoint.write_with_imm(side.region, side.remote, [(90, 300, 9)], imm=2**32 - 1).wait()
        endpoint.recv(received, tag=7).wait()
        expected = pattern(NBYTES, 0)
        expected[:50] = pattern(NBYTES, 1)[100:150]
    else:
        assert endpoint.expect_imm().wait() == 2**32 - 1
        expected = pattern(NBYTES, 1)
        expected[200:220] = pattern(NBYTES, 0)[60:80]
        expected[300:309] = pattern(NBYTES, 0)[90:99]
        endpoint.send(pattern(100, 5), tag=7).wait()
    expect(side.memory, expected)
    if rank == 0:
        expect_pattern(received, 5)
    sync("moved")


@places
def test_endpoints_read_write_and_send_by_tcp(place: Place) -> None:
    run_world(_transfers, 2, env=place(2), init=False)


def _pieces(rank: int, size: int, count: int, nbytes: int) -> None:
    """Transfer pages in any order: read into rank 0's first half, write to rank 1's second half."""
    side, half = Side(met(rank), 1 - rank, 2 * count * nbytes), count * nbytes
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    pages = torch.arange(count)
    if rank == 0:
        side.read((pages, order, nbytes)).wait()
        expected = pattern(2 * half, 1)[:half].view(count, nbytes)[order]
        expect(side.memory[:half], expected.flatten())
        expect(side.memory[half:], pattern(2 * half, 0)[half:])
        side.write((count + pages, count + order, nbytes)).wait()
    sync("written")
    if rank == 1:
        expected = torch.empty(count, nbytes, dtype=torch.uint8)
        expected[order] = pattern(2 * half, 0)[half:].view(count, nbytes)
        expect(side.memory[half:], expected.flatten())
        expect(side.memory[:half], pattern(2 * half, 1)[:half])
    sync("seen")


@places
@pytest.mark.parametrize(("count", "nbytes"), [(20_000, 16), (3000, 5000), (9, MEBI)])
def test_batches_of_pieces_arrive_in_their_places(place: Place, count: int, nbytes: int) -> None:
    run_world(_pieces, 2, count, nbytes, env=place(2), init=False)


def _both_ways(rank: int, size: int, nbytes: int) -> None:
    """Each rank writes its half, reads the other's, sends and receives, all at once."""
    endpoint = met(rank)
    side = Side(endpoint, 1 - rank, 2 * nbytes)
    ours, theirs = rank * nbytes, (1 - rank) * nbytes
    read, received = blank(nbytes), blank(nbytes)
    target = dlslime_backend.register(read)
    transfers = [
        side.write([(ours, ours, nbytes)]),
        endpoint.read(target, side.remote, [(0, theirs, nbytes)]),
        endpoint.send(pattern(nbytes, 8 + rank)),
        endpoint.recv(received),
    ]
    for transfer in transfers:
        transfer.wait()
    expect_pattern(received, 9 - rank)
    expect(read, pattern(2 * nbytes, 1 - rank)[theirs : theirs + nbytes])
    sync("written")
    expected = pattern(2 * nbytes, rank)
    expected[theirs : theirs + nbytes] = pattern(2 * nbytes, 1 - rank)[theirs : theirs + nbytes]
    expect(side.memory, expected)


@places
@pytest.mark.parametrize("nbytes", [1, 128 * 1024 - 64, 128 * 1024 + 1, LARGE])
def test_both_ends_read_write_and_send_at_once(place: Place, nbytes: int) -> None:
    run_world(_both_ways, 2, nbytes, env=place(2), init=False)


def _threads(rank: int, size: int, threads: int, rounds: int) -> None:
    """Each thread has a tag, and a part of both memories, of its own."""
    endpoint = met(rank)
    part = 3000
    side = Side(endpoint, 1 - rank, threads * part)

    def use(number: int) -> None:
        message, at = blank(part), number * part
        for i in range(rounds):
            sent = endpoint.send(pattern(10 + i, number + rank), number)
            endpoint.recv(message, number).wait()
            sent.wait()
            expect_pattern(message[: 10 + i], number + 1 - rank)
            if rank == 0:
                side.read([(at, at, part)]).wait()
        if rank == 0:
            expect(side.memory[at : at + part], pattern(threads * part, 1)[at : at + part])

    run_threads([lambda n=n: use(n) for n in range(threads)])  # type: ignore[misc]
    sync("through")


def test_many_threads_share_an_endpoint() -> None:
    run_world(_threads, 2, 12, 40, env=hosts(2), init=False)


@places
def test_hub_takes_guests_by_tcp(place: Place) -> None:
    run_world(hub_of_many, 4, env=place(4), init=False)


# --- logs and refusals ----------------------------------------------------------------------------


def _several(rank: int, size: int, count: int) -> None:
    """Endpoints, and guests of a hub, between two processes."""
    for i in range(count):
        with met(rank, f"endpoint {i}") as endpoint:
            received = blank(10)
            sent = endpoint.send(pattern(10, rank))
            endpoint.recv(received).wait()
            sent.wait()
            expect_pattern(received, 1 - rank)
            sync(f"through {i}")
    if rank == 0:
        with dlslime_backend.Hub() as hub:
            tell("hub", hub.address.hex())
            await_key("told")
        return
    for _ in range(count):
        with dlslime_backend.Endpoint() as guest:
            guest.connect(bytes.fromhex(await_key("hub")))
            guest.send(pattern(10)).wait()
            assert guest.route() == "tcp"
    tell("told")


def _warnings(outputs: list[str]) -> list[str]:
    return [line for output in outputs for line in output.splitlines() if "dlslime" in line]


def test_pair_is_warned_of_once_however_many_endpoints_it_has() -> None:
    results = run_world(_several, 2, 5, env=hosts(2), init=False, fresh=True, with_output=True)
    for _, output in results:
        assert len(_warnings([output])) <= 1, output
    said = _warnings([output for _, output in results])
    assert said, "the end that connects says it"
    for line in said:
        assert "go over TCP, the slowest route, because" in line
        assert "shm: " in line
        assert "rdma: switched off by DLSLIME_RDMA=off" in line


def test_fallback_that_is_allowed_is_silent() -> None:
    env = hosts(2, DLSLIME_FALLBACK="allow")
    results = run_world(_several, 2, 2, env=env, init=False, fresh=True, with_output=True)
    assert not _warnings([output for _, output in results])


def _forbidden(rank: int, size: int, forbids: list[int]) -> None:
    endpoint = met(rank, timeout=60)
    side, begun = Side(endpoint, 1 - rank), time.monotonic()
    if rank == forbids[0]:
        begin = [
            lambda: side.read().wait(),
            lambda: side.write().wait(),
            lambda: endpoint.write_with_imm(side.region, side.remote, imm=1).wait(),
            lambda: endpoint.send(blank(10)).wait(),
            lambda: endpoint.recv(blank(10)).wait(),
            endpoint.route,
        ]
        for call in begin:
            with pytest.raises(dist.DistBackendError) as caught:
                call()
            text = str(caught.value)
            assert "falling back to TCP is forbidden (DLSLIME_FALLBACK): shm: " in text
            assert "rdma: switched off by DLSLIME_RDMA=off" in text
        assert time.monotonic() - begun < SOON, "at once, not at the time-out"
    sync("refused")
    expect_pattern(side.memory, rank)


@places
@pytest.mark.parametrize("forbids", [[0, 1], [0], [1]], ids=["both", "first", "second"])
def test_fallback_that_is_forbidden_names_what_is_missing(place: Place, forbids: list[int]) -> None:
    env = [
        {**e, "DLSLIME_FALLBACK": "forbid" if rank in forbids else "warn"}
        for rank, e in enumerate(place(2))
    ]
    run_world(_forbidden, 2, forbids, env=env, init=False, fresh=True)


@pytest.mark.parametrize("route", ["shm", "rdma"])
def test_route_that_is_asked_for_and_missing_is_an_error(route: str) -> None:
    run_world(_without_route, 2, route, env=hosts(2), init=False)


def _without_route(rank: int, size: int, route: str) -> None:
    endpoint = met(rank, timeout=60, route=route)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=f"{route}: "):
            endpoint.send(blank(10)).wait(SOON)
    sync("refused")


def _asked_for(rank: int, size: int, route: str) -> str:
    endpoint = met(rank, route=route)
    for seed in range(3):
        received = blank(MEBI)
        sent = endpoint.send(pattern(MEBI, rank + seed))
        endpoint.recv(received).wait()
        sent.wait()
        expect_pattern(received, 1 - rank + seed)
    route = endpoint.route()
    sync("through")
    return route


@pytest.mark.parametrize("route", ["tcp", "gloo"])
def test_endpoint_takes_the_slow_route_that_it_asks_for_in_silence(route: str) -> None:
    env = [{"DLSLIME_FALLBACK": "forbid", "DLSLIME_LOG": "warn"}] * 2
    results = run_world(_asked_for, 2, route, env=env, init=False, fresh=True, with_output=True)
    assert results == [(route, "")] * 2
