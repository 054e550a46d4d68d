"""What only two hosts can show: routes between them, networks that lose packets, peers that vanish.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import dlslime_backend
from faults import heal, netem, nic_counter
from harness import Died, WorldError, await_key, run_world, sync, tell
from patterns import blank, expect_pattern, pattern

LARGE = 3 << 20


def _exchange(rank: int, size: int, nbytes: int, rounds: int = 1) -> None:
    for number in range(rounds):
        received = {r: blank(nbytes) for r in range(size) if r != rank}
        works = [dist.irecv(tensor, r) for r, tensor in received.items()]
        works += [dist.isend(pattern(nbytes, number + 10 * rank + r), r) for r in received]
        for work in works:
            work.wait()
        for r, tensor in received.items():
            expect_pattern(tensor, number + 10 * r + rank, f"{r} -> {rank}")


def _routes(rank: int, size: int) -> dict[int, str]:
    _exchange(rank, size, 1000)
    return {r: dlslime_backend.explain(r)["route"] for r in range(size) if r != rank}


def test_pairs_of_a_node_share_memory_and_the_others_go_by_rdma() -> None:
    routes = run_world(_routes, 4)
    for rank, of in enumerate(routes):
        assert of == {r: "shm" if r // 2 == rank // 2 else "rdma" for r in range(4) if r != rank}


def _posted_first(rank: int, size: int, nbytes: int, rounds: int) -> tuple[int, int]:
    """Returns how many messages rank 0 has pushed, and how many rank 1's NIC has received."""
    tensor = blank(nbytes)
    for number in range(-2, rounds):  # the first ones make the memory known
        if number == 0:
            sync("known")
            received = nic_counter("rdma_recvs")
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
    return pushed, nic_counter("rdma_recvs") - received


@pytest.mark.parametrize("nbytes", [64 << 10, 1 << 20])
def test_message_for_a_posted_receive_is_one_on_the_wire(nbytes: int) -> None:
    rounds = 20
    (pushed, _), (_, received) = run_world(_posted_first, 2, nbytes, rounds, fresh=True)
    assert pushed >= rounds
    assert received <= rounds + 2  # and some credit


def _descriptors() -> set[str]:
    # The listing's own is listed, too, and gone when it is looked at.
    return {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


def _fork(rank: int, size: int) -> list[str]:
    _exchange(rank, size, 1000)
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
    _exchange(rank, size, LARGE)
    return [name for name in names if "infiniband" in name]


def test_forked_child_keeps_nothing_of_the_nics() -> None:
    assert run_world(_fork, 2) == [[], []]


def test_gloo_carries_what_rdma_may_not_and_says_why() -> None:
    results = run_world(_routes, 2, env=[{}, {"DLSLIME_RDMA": "off"}], fresh=True, with_output=True)
    assert [routes for routes, _ in results] == [{1: "gloo"}, {0: "gloo"}]
    text = "".join(output for _, output in results)
    assert "go by Gloo" in text
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
        [sys.executable, "-m", "dlslime_backend", "doctor"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "routes rdma: works; rxe0:1, Ethernet, GID" in done.stdout, done.stdout
    assert "(10.9.0.1)" in done.stdout


@pytest.fixture
def _whole_network() -> None:
    run_world(heal, 2, init=False)


def _through_faults(rank: int, size: int, faults: list[str], nbytes: int, rounds: int) -> None:
    _exchange(rank, size, 8)
    with netem(*faults):
        sync("faulty")
        _exchange(rank, size, nbytes, rounds)
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
    _exchange(rank, size, 8)
    received = blank(LARGE)
    if rank == 0:  # node 1 says nothing for a second, not even that it has received
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


# A queue pair gives up after some hundred milliseconds, not four seconds.
IMPATIENT = {"DLSLIME_IB_TIMEOUT": "13", "DLSLIME_IB_RETRY_CNT": "3"}


UP = ["ip", "link", "set", "vec0", "up"]


def _unplug(rank: int, size: int, seconds: int | None) -> str:
    """Exchanges messages while the first cable is out, for so long or until all have arrived."""
    _exchange(rank, size, 8)
    if rank == 1:
        subprocess.run(["ip", "link", "set", "vec0", "down"], check=True)
        if seconds is not None:
            subprocess.Popen(["sh", "-c", f"sleep {seconds}; {' '.join(UP)}"])
    for nbytes in (300000, 5000, LARGE):
        _exchange(rank, size, nbytes, 10)
    told = dlslime_backend.explain(1 - rank)
    assert told["route"] == "rdma"
    assert dlslime_backend.stats()["peers"][1 - rank]["replaced_connections"] > 0
    if rank == 1 and seconds is None:
        subprocess.run(UP, check=True)
    return told["devices"]


def test_only_link_that_is_down_for_seconds_loses_nothing() -> None:
    env = {**IMPATIENT, "DLSLIME_NICS": "rxe0"}
    results = run_world(_unplug, 2, 3, env=env, fresh=True, with_output=True)
    assert [devices for devices, _ in results] == ["rxe0:1"] * 2
    assert "is lost (RDMA by rxe0:1: " in "".join(output for _, output in results)


def test_second_nic_goes_on_while_the_first_ones_link_is_down() -> None:
    env = {**IMPATIENT, "DLSLIME_SOCKET_IFNAME": "vec"}
    assert run_world(_unplug, 2, None, env=env, fresh=True) == ["rxe1:1"] * 2


def _exchange_until(rank: int, size: int, what: str, value: str) -> None:
    """Exchanges messages until ``explain`` says so at both ends."""
    while True:
        _exchange(rank, size, 200000)
        mine = torch.tensor([dlslime_backend.explain(1 - rank)[what] == value])
        theirs = torch.zeros_like(mine)
        works = [dist.irecv(theirs, 1 - rank), dist.isend(mine, 1 - rank)]
        for work in works:
            work.wait()
        if mine.item() and theirs.item():
            return


def _replug(rank: int, size: int, link: str, what: str, values: list[str]) -> None:
    """Takes a cable out, and puts it in again, each time until the pair has taken notice."""
    for state, value in zip(("up", "down", "up"), values, strict=True):
        if rank == 1:
            subprocess.run(["ip", "link", "set", link, state], check=True)
        _exchange_until(rank, size, what, value)


def test_nic_is_used_again_when_its_link_is_back() -> None:
    env = {"DLSLIME_SOCKET_IFNAME": "vec", "DLSLIME_LOG": "info"}
    both = "rxe0:1, rxe1:1"
    values = [both, "rxe0:1", both]
    results = run_world(
        _replug, 2, "vec1", "devices", values, env=env, fresh=True, with_output=True
    )
    text = results[1][1]
    assert "is lost (RDMA by rxe1:1: its port went down (IBV_EVENT_PORT_ERR))" in text, text
    assert "rxe1:1: its port is up (IBV_EVENT_PORT_ACTIVE)" in text, text


def test_gloo_is_left_when_the_only_nics_link_is_back() -> None:
    env = {**IMPATIENT, "DLSLIME_NICS": "rxe1", "DLSLIME_RECOVERY_MS": "4000"}
    values = ["rdma", "gloo", "rdma"]
    results = run_world(_replug, 2, "vec1", "route", values, env=env, fresh=True, with_output=True)
    assert "a better way is there: rdma by rxe1:1" in "".join(output for _, output in results)


def _received_bytes(device: str) -> int:
    return int(Path(f"/sys/class/net/{device}/statistics/rx_bytes").read_text(encoding="ascii"))


def _both_nics(rank: int, size: int) -> tuple[str, list[int]]:
    before = [_received_bytes(f"vec{i}") for i in range(2)]
    _exchange(rank, size, 12 << 20, 2)
    received = [_received_bytes(f"vec{i}") - before[i] for i in range(2)]
    return dlslime_backend.explain(1 - rank)["devices"], received


def test_large_messages_go_by_both_nics() -> None:
    results = run_world(_both_nics, 2, fresh=True)
    assert [devices for devices, _ in results] == ["rxe0:1, rxe1:1"] * 2
    assert all(min(received) > 4 << 20 for _, received in results)


def _vanish(rank: int, size: int, how: int) -> float:
    _exchange(rank, size, 8)
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
