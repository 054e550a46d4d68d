"""Cables pulled out and put in again, and addresses that change, under traffic.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from faults import heal, set_address, set_link, usual_address
from harness import init_group, run_world, sync
from holdings import expect_the_same, held, settled
from test_two_hosts import WARN, exchange
from traffic import Burst, Talker, draw_burst

# A queue pair gives up after some hundred milliseconds, not four seconds.
IMPATIENT = {"DLSLIME_IB_TIMEOUT": "13", "DLSLIME_IB_RETRY_CNT": "3"}
BOTH_NICS = "rxe0:1, rxe1:1"
CABLE = "vec0"
WARMING = 6  # bursts before anything is counted
PULLS = 2  # of the cable
BURSTS = 3  # beside the bursts under way at the pull


@pytest.fixture(autouse=True)
def _whole_network() -> Iterator[None]:
    yield
    run_world(heal, 2, init=False)


@dataclasses.dataclass
class Life:
    """A rank's results."""

    holdings: dict[str, dict[str, int]]  # resources of the process at several times
    peer: dict[str, Any]
    meanwhile: list[str]  # the devices after the bursts of each pull


def _exchange_until(rank: int, size: int, what: str, value: str) -> None:
    """Exchange messages until `explain` returns `value` at both ends."""
    while True:
        exchange(rank, size, 200000)
        mine = torch.tensor([dlslime_backend.explain(1 - rank)[what] == value])
        theirs = torch.zeros_like(mine)
        works = [dist.irecv(theirs, 1 - rank), dist.isend(mine, 1 - rank)]
        for work in works:
            work.wait()
        if mine.item() and theirs.item():
            return


def _pull(seconds: float | None) -> None:
    """Pull the cable, and put the cable in again after `seconds`, if given."""
    set_link(CABLE, "down")
    if seconds is not None:
        time.sleep(seconds)
        set_link(CABLE, "up")


def _talk_through(pulled: Future[None] | None, talker: Talker, bursts: Iterator[Burst]) -> None:
    """Send random traffic both ways until rank 1's `pulled` is over, and some more."""
    go_on = torch.ones(1)
    while go_on.item():
        talker.run(next(bursts))
        if pulled is None:
            dist.recv(go_on, 1)
        else:
            dist.send(go_on.fill_(not pulled.done()), 0)
    for burst in itertools.islice(bursts, BURSTS):
        talker.run(burst)


def _through_pulls(rank: int, size: int, seconds: float | None, devices: str) -> Life:
    """Send random traffic while rank 1's cable is out, for `seconds` or for some bursts."""
    holdings = {"alone": held()}
    init_group()
    talker = Talker(rank)
    hand = ThreadPoolExecutor(1)
    hand.submit(int).result()  # the thread of the executor exists from now on
    bursts = map(draw_burst, itertools.count())
    for burst in itertools.islice(bursts, WARMING):
        talker.run(burst)
    _exchange_until(rank, size, "devices", devices)
    talker.forget()
    sync("warm")
    holdings["before"] = held()
    sync("counted")
    meanwhile = []
    for _ in range(PULLS):
        pulled = hand.submit(_pull, seconds) if rank == 1 else None
        _talk_through(pulled, talker, bursts)
        while not (used := dlslime_backend.explain(1 - rank)["devices"]):
            time.sleep(0.01)  # a lost connection is being replaced
        meanwhile.append(used)
        if pulled is not None:
            pulled.result()
            set_link(CABLE, "up")
        _exchange_until(rank, size, "devices", devices)
    talker.forget()
    sync("quiet")
    holdings["after"] = settled(holdings["before"])
    sync("counted again")
    peer = dlslime_backend.stats()["peers"][1 - rank]
    talker.close()
    hand.shutdown()
    dist.destroy_process_group()
    holdings["alone again"] = settled(holdings["alone"])
    return Life(holdings, peer, meanwhile)


def _expect_same_connections(life: Life) -> None:
    assert life.peer["route"] == "rdma"
    assert life.peer["replaced_connections"] >= PULLS
    expect_the_same(life.holdings)


def test_only_link_that_goes_down_under_traffic_loses_and_leaves_nothing() -> None:
    env = {**IMPATIENT, "DLSLIME_NICS": "rxe0"}
    results = run_world(
        _through_pulls, 2, 1.5, "rxe0:1", env=env, fresh=True, init=False, with_output=True
    )
    for life, _ in results:
        _expect_same_connections(life)
        assert life.meanwhile == ["rxe0:1"] * PULLS
    assert "is lost (RDMA by rxe0:1: " in "".join(output for _, output in results)


def test_second_nic_carries_the_traffic_while_the_first_ones_link_is_down() -> None:
    env = {**IMPATIENT, "DLSLIME_SOCKET_IFNAME": "vec"}
    for life in run_world(_through_pulls, 2, None, BOTH_NICS, env=env, fresh=True, init=False):
        _expect_same_connections(life)
        assert life.meanwhile == ["rxe1:1"] * PULLS


def _replug(rank: int, size: int, link: str, what: str, values: list[str]) -> None:
    """Take a cable out, and put the cable in again, each time until the pair has noticed."""
    for state, value in zip(("up", "down", "up"), values, strict=True):
        if rank == 1:
            set_link(link, state)
        _exchange_until(rank, size, what, value)


def test_nic_is_used_again_when_its_link_is_back() -> None:
    env = {"DLSLIME_SOCKET_IFNAME": "vec", "DLSLIME_LOG": "info"}
    values = [BOTH_NICS, "rxe0:1", BOTH_NICS]
    results = run_world(
        _replug, 2, "vec1", "devices", values, env=env, fresh=True, with_output=True
    )
    text = results[1][1]
    assert "is lost (RDMA by rxe1:1: its port went down (IBV_EVENT_PORT_ERR))" in text, text
    assert "rxe1:1: its port is up (IBV_EVENT_PORT_ACTIVE)" in text, text


def test_tcp_is_left_when_the_only_nics_link_is_back() -> None:
    env = {**IMPATIENT, **WARN, "DLSLIME_NICS": "rxe1"}
    values = ["rdma", "tcp", "rdma"]
    results = run_world(_replug, 2, "vec1", "route", values, env=env, fresh=True, with_output=True)
    assert "a better connection is possible: rdma by rxe1:1" in "".join(
        output for _, output in results
    )


def _readdress(rank: int, size: int) -> None:
    """Give rank 1's second cable a new address while both ranks talk, and the old address again."""
    _exchange_until(rank, size, "devices", BOTH_NICS)
    for address in ("10.10.0.77", usual_address("vec1", 1)):
        before = dlslime_backend.stats()["peers"][1 - rank]["replaced_connections"]
        sync(address)
        if rank == 1:
            set_address("vec1", address)
        while dlslime_backend.stats()["peers"][1 - rank]["replaced_connections"] == before:
            time.sleep(0.01)  # the NIC reports the change by itself
        _exchange_until(rank, size, "devices", BOTH_NICS)


def test_nic_whose_address_changes_is_connected_anew_with_the_other_one() -> None:
    env = {"DLSLIME_SOCKET_IFNAME": "vec", "DLSLIME_LOG": "info"}
    results = run_world(_readdress, 2, env=env, fresh=True, with_output=True)
    text = results[1][1]
    assert "is lost (RDMA by rxe1:1: its address has changed" in text, text
