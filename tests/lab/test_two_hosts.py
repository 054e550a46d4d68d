"""Tests that need two hosts: routes between hosts, networks that lose packets, vanishing peers.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from faults import heal, netem, nic_counters, packets_received
from harness import (
    Died,
    WorldError,
    await_key,
    context,
    init_group,
    run_world,
    sync,
    tell,
)
from holdings import expect_the_same, grown_kib, held, settled
from patterns import blank, expect_pattern, pattern

LARGE = 3 << 20
WARMING = 5  # lives of a group before anything is counted
WARN = {"DLSLIME_FALLBACK": "warn"}  # the default, changed by run_tests


def exchange(rank: int, size: int, nbytes: int, rounds: int = 1) -> None:
    """Send messages to all other ranks, and check the messages of all other ranks."""
    for number in range(rounds):
        received = {r: blank(nbytes) for r in range(size) if r != rank}
        works = [dist.irecv(tensor, r) for r, tensor in received.items()]
        works += [dist.isend(pattern(nbytes, number + 10 * rank + r), r) for r in received]
        for work in works:
            work.wait()
        for r, tensor in received.items():
            expect_pattern(tensor, number + 10 * r + rank, f"{r} -> {rank}")


def _routes(rank: int, size: int) -> dict[int, str]:
    exchange(rank, size, 1000)
    return {r: dlslime_backend.explain(r)["route"] for r in range(size) if r != rank}


def test_pairs_of_a_node_share_memory_and_the_others_go_by_rdma() -> None:
    routes = run_world(_routes, 4)
    for rank, of in enumerate(routes):
        assert of == {r: "shm" if r // 2 == rank // 2 else "rdma" for r in range(4) if r != rank}


def _posted_first(rank: int, size: int, nbytes: int, rounds: int) -> tuple[int, int]:
    """Return the messages pushed by the rank, and the messages received by the rank's NICs."""
    tensor = blank(nbytes)
    for number in range(-2, rounds):  # the first rounds make the memory known
        if number == 0:
            sync("known")
            received = nic_counters()["rdma_recvs"]
        if rank == 1:
            work = dist.irecv(tensor, 0)
            sync(f"posted {number}")
            work.wait()
            expect_pattern(tensor, number + 2)
        else:
            tensor.copy_(pattern(nbytes, number + 2))
            sync(f"posted {number}")
            dist.send(tensor, 1)
    sync("over")
    pushed = dlslime_backend.stats()["peers"][1 - rank]["pushed_messages"]
    return pushed, nic_counters()["rdma_recvs"] - received


@pytest.mark.parametrize("nbytes", [64 << 10, 1 << 20])
def test_message_for_a_posted_receive_is_one_on_the_wire(nbytes: int) -> None:
    rounds = 20
    (pushed, _), (_, received) = run_world(_posted_first, 2, nbytes, rounds, fresh=True)
    assert pushed >= rounds
    assert rounds <= received <= rounds + 2  # and some credit


def _descriptors() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        # The list contains the descriptor of the listing itself, closed by now, and maybe
        # descriptors of threads.
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(fd))
    return found


def _fork(rank: int, size: int) -> list[str]:
    exchange(rank, size, 1000)
    assert any("infiniband" in name for name in _descriptors())
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, "\n".join(_descriptors()).encode())
        os._exit(0)
    os.close(writable)
    with open(readable, encoding="utf-8") as pipe:
        names = pipe.read().split("\n")
    os.waitpid(child, 0)
    exchange(rank, size, LARGE)
    return [name for name in names if "infiniband" in name]


def test_forked_child_keeps_nothing_of_the_nics() -> None:
    assert run_world(_fork, 2) == [[], []]


def test_tcp_carries_what_rdma_may_not_and_says_why() -> None:
    env = [WARN, {**WARN, "DLSLIME_RDMA": "off"}]
    results = run_world(_routes, 2, env=env, fresh=True, with_output=True)
    assert [routes for routes, _ in results] == [{1: "tcp"}, {0: "tcp"}]
    text = "".join(output for _, output in results)
    assert "go over TCP" in text
    assert "rdma: " in text


def test_forbidden_fallback_fails_with_the_reason() -> None:
    env = {"DLSLIME_RDMA": "off", "DLSLIME_FALLBACK": "forbid"}
    with pytest.raises(WorldError, match="DLSLIME_RDMA=off"):
        run_world(_routes, 2, env=env, fresh=True)


def test_forced_rdma_takes_it_within_a_node_too() -> None:
    routes = run_world(_routes, 4, env={"DLSLIME_ROUTE": "rdma"})
    assert all(route == "rdma" for of in routes for route in of.values())


def test_doctor_lists_the_nic() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlslime_backend", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found["route rdma"]["text"].startswith("works; rxe0:1, Ethernet, GID"), found
    assert "(10.9.0.1)" in found["route rdma"]["text"]
    assert found["rxe0:1"]["text"].startswith("ACTIVE, Ethernet"), found
    assert "RoCE v2" in found["rxe0:1 GIDs"]["text"], found


@pytest.fixture
def _whole_network() -> None:
    run_world(heal, 2, init=False)


def _through_faults(rank: int, size: int, faults: list[str], nbytes: int, rounds: int) -> None:
    exchange(rank, size, 8)
    with netem(*faults):
        sync("faulty")
        exchange(rank, size, nbytes, rounds)
        sync("passed")


@pytest.mark.usefixtures("_whole_network")
@pytest.mark.parametrize(
    "faults",
    [["loss", "1%"], ["delay", "2ms"], ["duplicate", "2%"], ["corrupt", "0.5%"]],
    ids=lambda faults: faults[0],
)
def test_messages_arrive_whole_through_a_faulty_network(faults: list[str]) -> None:
    run_world(_through_faults, 2, faults, 50000, 20)
    run_world(_through_faults, 2, faults, 1 << 20, 3)


def _cut(rank: int, size: int) -> None:
    exchange(rank, size, 8)
    received = blank(LARGE)
    if rank == 0:  # node 1 says nothing for a second, and acknowledges nothing
        start = time.monotonic()
        tell("ready")
        await_key("cutting")
        dist.recv(received, 1)
        assert 0.5 < time.monotonic() - start < 30
    else:
        await_key("ready")
        tell("cutting")
        with netem("loss", "100%"):
            work = dist.isend(pattern(LARGE, rank), 0)
            time.sleep(1)
        work.wait()
        return
    expect_pattern(received, 1)


@pytest.mark.usefixtures("_whole_network")
def test_cable_that_is_out_for_a_second_costs_a_second() -> None:
    run_world(_cut, 2)


def _by_nics(rank: int, size: int) -> tuple[str, str, dict[str, int]]:
    """Return the route, the devices and the number of packets received by each NIC."""
    before = packets_received()
    exchange(rank, size, 12 << 20, 2)
    sync("received")
    packets = packets_received() - before
    told = dlslime_backend.explain(1 - rank)
    return told["route"], told["devices"], dict(packets)


def test_large_messages_go_by_both_nics() -> None:
    for route, devices, packets in run_world(_by_nics, 2, fresh=True):
        assert (route, devices) == ("rdma", "rxe0:1, rxe1:1")
        # Packets of 4 KiB. The first four parts of 256 KiB go to each NIC before any part has to
        # end; a later part goes to the NIC that is ready, on a busy machine perhaps always the same
        # NIC.
        assert min(packets["rxe0"], packets["rxe1"]) >= 4 << 6


@pytest.mark.parametrize("alone", [0, 1])
def test_rank_with_one_nic_reaches_one_with_two_by_the_one(alone: int) -> None:
    env: list[dict[str, str]] = [{}, {}]
    env[alone] = {"DLSLIME_NICS": "rxe0"}
    run_world(exchange, 2, 1000, 20, env=env)
    for route, devices, packets in run_world(_by_nics, 2, env=env):
        assert (route, devices) == ("rdma", "rxe0:1")
        assert set(packets) == {"rxe0"}


def _vanish(rank: int, size: int, how: int) -> float:
    exchange(rank, size, 8)
    if rank == 1:
        tell("pid", str(os.getpid()))
        works = [dist.irecv(torch.empty(LARGE), 0) for _ in range(3)]
        time.sleep(0.1)
        os.kill(os.getpid(), how)
        del works
    await_key("pid")
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1"):
        dist.recv(blank(8), 1)
    return time.monotonic() - start


def test_killed_process_on_the_other_host_is_noticed_by_its_socket() -> None:
    seconds, died = run_world(_vanish, 2, signal.SIGKILL, may_die=[1])
    assert isinstance(died, Died)
    assert seconds < 10


def _lives(rank: int, size: int, rounds: int) -> dict[str, dict[str, int]]:
    """Make, use and destroy a group, again and again; return the resources held."""

    def live(number: int) -> None:
        init_group(store=dist.PrefixStore(f"life {number}", context().store))
        for nbytes in (1000, 200000):
            exchange(rank, size, nbytes)
        assert dlslime_backend.explain(1 - rank)["route"] == "rdma"
        dist.destroy_process_group()

    holdings = {"alone": held()}
    for number in range(WARMING):
        live(number)
    sync("warm")
    holdings["before"] = held()
    sync("counted")
    for number in range(WARMING, WARMING + rounds):
        live(number)
    sync("over")
    holdings["after"] = settled(holdings["before"])
    holdings["alone again"] = settled(holdings["alone"])
    return holdings


def test_a_hundred_lives_of_a_group_leave_nothing_behind() -> None:
    for holdings in run_world(_lives, 2, 100, init=False, fresh=True, timeout=180):
        expect_the_same(holdings)
        assert grown_kib(holdings) < 4 << 10
