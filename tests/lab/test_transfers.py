"""One-sided transfers between two hosts: by the NIC, through faults, and after a pulled cable.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import subprocess
import time

import pytest
import torch

import dlslime_backend as dlslime
from faults import heal, netem, nic_counter
from harness import await_key, run_world, sync, tell

PAGE = 4096
PAGES = 512


class _Side:
    """The memory of a rank, and its peer's."""

    def __init__(self, rank: int) -> None:
        self.cache = torch.empty(PAGES, PAGE, dtype=torch.uint8)
        self.region = dlslime.register(self.cache, f"cache of rank {rank}")
        tell(f"region of {rank}", self.region.export().hex())
        self.remote = dlslime.import_region(bytes.fromhex(await_key(f"region of {1 - rank}")))
        self.peer = dlslime.peer(1 - rank)


def _value(page: torch.Tensor, number: int, rank: int) -> torch.Tensor:
    return ((page * 7 + number * 13 + rank * 101) % 251).to(torch.uint8)


def _fill(cache: torch.Tensor, number: int, rank: int) -> None:
    cache[:] = _value(torch.arange(PAGES), number, rank)[:, None]


def _migrate(side: _Side, rank: int, number: int) -> None:
    """Read or write half of the pages at random places by rank 0, and check all pages."""
    _fill(side.cache, number, rank)
    sync(f"filled {number}")
    order = torch.Generator().manual_seed(number)
    here = torch.randperm(PAGES, generator=order)[: PAGES // 2]
    there = torch.randperm(PAGES, generator=order)[: PAGES // 2]
    write = number % 2 == 1
    if rank == 0:
        move = side.peer.write if write else side.peer.read
        move(side.region, side.remote, (here, there, PAGE)).wait()
    sync(f"moved {number}")
    if rank == int(write):  # the destination's end
        at, source = (there, here) if write else (here, there)
        expected = _value(torch.arange(PAGES), number, rank)
        expected[at] = _value(source, number, 1 - rank)
        assert torch.equal(side.cache, expected[:, None].expand(PAGES, PAGE))
    sync(f"checked {number}")


def _by_nic(rank: int, size: int) -> tuple[str, int]:
    side = _Side(rank)
    route = side.peer.route()
    sync("connected")
    before = nic_counter("rdma_recvs")
    _migrate(side, rank, 0)
    _migrate(side, rank, 1)
    messages = nic_counter("rdma_recvs") - before
    sync("counted")
    side.region.deregister()
    return route, messages


def test_pages_go_by_the_nic_and_the_owner_gets_few_messages() -> None:
    for route, messages in run_world(_by_nic, 2):
        assert route == "rdma"
        assert messages < 40  # of 512 pages


def _through(rank: int, size: int, faults: list[str]) -> None:
    side = _Side(rank)
    _migrate(side, rank, 0)
    with netem(*faults):
        for number in range(1, 7):
            _migrate(side, rank, number)
    sync("over")
    side.region.deregister()


@pytest.mark.parametrize(
    "faults",
    [["loss", "1%"], ["delay", "1ms", "reorder", "25%"], ["duplicate", "5%"], ["corrupt", "1%"]],
    ids=lambda faults: str(faults[0]),
)
def test_pages_arrive_through_a_faulty_network(faults: list[str]) -> None:
    try:
        run_world(_through, 2, faults, timeout=150)
    finally:
        run_world(heal, 2, init=False)


def _unplugged(rank: int, size: int) -> None:
    side = _Side(rank)
    _migrate(side, rank, 0)
    _fill(side.cache, 1, rank)
    sync("filled")
    if rank == 1:
        # All packets are lost for a while, without a report; then the cable is pulled and put back.
        with netem("loss", "100%"):
            time.sleep(1)
        for state in ("down", "up"):
            subprocess.run(["ip", "link", "set", "vec0", state], check=True)
        tell("whole", "again")
        await_key("enough")
    else:
        expected = _value(torch.arange(PAGES), 1, 1)[:, None].expand(PAGES, PAGE)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            side.cache.zero_()
            side.peer.read(side.region, side.remote).wait()
            assert torch.equal(side.cache, expected)
        await_key("whole")
        side.peer.read(side.region, side.remote).wait()
        tell("enough", "read")
    sync("over")
    side.region.deregister()


def test_cable_that_is_out_meanwhile_costs_no_page() -> None:
    env = {"DLSLIME_IB_TIMEOUT": "13", "DLSLIME_IB_RETRY_CNT": "3"}
    run_world(_unplugged, 2, env=env, timeout=150)
