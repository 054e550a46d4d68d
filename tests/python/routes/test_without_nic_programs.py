"""Programs between hosts without RDMA: examples and other libraries' APIs, over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import test_nixl
from dlslime_backend.compat import dlslime as upstream
from harness import dlslime_only, run_world, sync
from patterns import blank, expect, expect_pattern, pattern
from test_one_sided import swap
from test_programs_examples import run_transfer
from test_without_nic import hosts, one_host

pytestmark = dlslime_only

TCP = "go over TCP"


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_transfer_reads_and_writes_in_every_way(device: str) -> None:
    assert "reached by tcp" in run_transfer(device, *hosts(2))


def _calls(**env: str) -> tuple[list[Any], str]:
    """Return the result of each call of NIXL's program, and the log."""
    done = subprocess.run(
        [sys.executable, str(test_nixl.PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "DLSLIME_PROVIDE": "nixl", **env},
    )
    assert done.returncode == 0, done.stderr
    calls: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return calls, done.stderr


def test_nixls_calls_do_by_tcp_what_they_do_by_shared_memory() -> None:
    usual, said = _calls()
    assert TCP not in said
    slow, said = _calls(**one_host(1)[0])
    assert len(slow) > 60
    assert slow == usual
    assert TCP in said


@pytest.mark.parametrize("ends", ["killed", "released"])
def test_a_nixl_transfer_between_hosts_whose_other_agent(ends: str) -> None:
    may_die = [1] if ends == "killed" else []
    run_world(test_nixl._target, 2, ends, env=hosts(2), init=False, may_die=may_die)


PAGES, PAGE = 3000, 512


def _original(rank: int, size: int) -> None:
    """Read thousands of pages, write with a number, send and receive; then the other end leaves."""
    endpoint, cache = upstream.RDMAEndpoint(), pattern(PAGES * PAGE, rank)
    here = endpoint.register_memory_region("cache", cache.data_ptr(), 0, cache.nbytes)
    swapped = swap("info", json.dumps(endpoint.endpoint_info()).encode(), 1 - rank)
    theirs = json.loads(swapped)
    there = endpoint.register_remote_memory_region("cache", theirs["mr_info"]["cache"])
    endpoint.connect(theirs)
    expected, message = pattern(PAGES * PAGE, rank).view(PAGES, PAGE), blank(100)
    chunk = (message.data_ptr(), 0, message.nbytes)
    if rank == 0:
        pages = range(0, PAGES - 1, 2)
        pieces = [(here, there, (PAGES - 1 - p) * PAGE, p * PAGE, PAGE) for p in pages]
        assert endpoint.read(pieces).wait() == 0
        expected[list(pages)] = pattern(PAGES * PAGE, 1).view(PAGES, PAGE).flip(0)[list(pages)]
        endpoint.write_with_imm([(here, there, 0, PAGE, PAGE)], imm_data=1234).wait()
        endpoint.recv(chunk).wait()
        expect_pattern(message, 5)
    else:
        told = endpoint.imm_recv()
        told.wait()
        assert told.imm_data() == 1234
        expected[0] = pattern(PAGES * PAGE, 0).view(PAGES, PAGE)[1]
        message.copy_(pattern(100, 5))
        endpoint.send(chunk).wait()
    expect(cache, expected.flatten())
    sync("moved")
    if rank == 1:
        endpoint.shutdown()
    sync("left")
    if rank == 0:
        with pytest.raises((dist.DistBackendError, ValueError)):
            endpoint.read([(here, there, 0, 0, PAGE)]).wait()
        endpoint.shutdown()


@pytest.mark.parametrize("place", [hosts, one_host], ids=["hosts", "one_host"])
def test_endpoints_of_the_original_api_go_by_tcp(
    place: Callable[[int], list[dict[str, str]]],
) -> None:
    results = run_world(_original, 2, env=place(2), init=False, fresh=True, with_output=True)
    assert any(TCP in output for _, output in results)
