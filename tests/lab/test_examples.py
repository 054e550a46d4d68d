"""The examples p2p_*.py between two hosts: the initiator on this host, the target on the other.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

import nodes
from harness import ROUTE, await_key, run_world, tell

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROLES = ("initiator", "target")
PAIRS = [
    "p2p_rdma_rc_read",
    "p2p_rdma_rc_read_coroutine",
    "p2p_rdma_rc_write",
    "p2p_rdma_rc_write_with_imm_data",
    "p2p_rdma_rc_send_recv",
    "p2p_rdma_rc_send_recv_gdr",
    "p2p_nvlink",
]
PATIENT = ["--timeout", "120"]


def _output(name: str, arguments: list[str]) -> str:
    """Run an example as its command line would, but in the test's process, with torch imported."""
    program = str(EXAMPLES / f"{name}.py")
    sys.argv = [program, *arguments, *PATIENT]
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        runpy.run_path(program, run_name="__main__")
    return written.getvalue()


def _end(rank: int, size: int, name: str, ports: list[int]) -> str:
    tell(f"host of {rank}", os.environ.get("NODE_ADDR", "127.0.0.1"))
    arguments = ["--role", ROLES[rank]]
    for number, role in enumerate(ROLES):
        arguments += [f"--{role}-url", f"{await_key(f'host of {number}')}:{ports[number]}"]
    return _output(name, arguments)


@pytest.mark.parametrize("name", PAIRS)
def test_ends_on_two_hosts_do_what_they_do_on_one(name: str) -> None:
    ports = [nodes.free_port(), nodes.free_port()]
    for role, output in zip(ROLES, run_world(_end, 2, name, ports, init=False)):
        assert re.fullmatch(rf"{role}: .+ \(route: {ROUTE}, cpu\)\n", output), output


def _rank(rank: int, size: int, url: str) -> str:
    os.environ.pop("RANK", None)  # as without torchrun
    return _output("p2p_rdma_rc_send_recv_torch", ["--rank", str(rank), "--url", url])


def test_ranks_on_two_hosts_exchange_their_batches() -> None:
    url = f"{nodes.ADDRESS}:{nodes.free_port()}"
    for rank, output in enumerate(run_world(_rank, 2, url, init=False)):
        assert output == f"rank {rank}: 5 tensors each way (route: {ROUTE}, cpu)\n"
