"""Programs of the original DLSlime, of vLLM, SGLang, LMDeploy and NIXL between two hosts.

Each program runs with the hosts' NICs and without RDMA. Run by tests/lab/run_tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

import fetch
import nodes
import test_lmdeploy
import test_nixl
import test_original_programs
import test_sglang
import test_vllm_connector
from harness import run_world
from paths import EXAMPLES, PROGRAMS

WITHOUT_RDMA = {"DLSLIME_RDMA": "off", "DLSLIME_FALLBACK": "warn", "DLSLIME_LOG": "warn"}
SECONDS = 240
BY_TCP = "go over TCP"

both_ways = pytest.mark.parametrize(
    "env", [pytest.param({}, id="rdma"), pytest.param(WITHOUT_RDMA, id="without rdma")]
)
Program = tuple[str, dict[str, str], list[str]]  # name, environment, arguments


def _on_both(here: Sequence[str], there: Sequence[str], env: dict[str, str]) -> list[str]:
    """Run a command on this host and a command on the other; return the outputs of both."""
    elsewhere = nodes.Launch([sys.executable, *there], env, SECONDS)
    mine = subprocess.run(
        [sys.executable, *here],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **env},
    )
    status, theirs = elsewhere.result()
    assert (mine.returncode, status) == (0, 0), f"here:\n{mine.stdout}\nthere:\n{theirs}"
    return [mine.stdout, theirs]


def _addresses() -> list[str]:
    """Return the addresses of this host and of the other, as both hosts know them."""
    tell = "import os; print(os.environ.get('NODE_ADDR', '127.0.0.1'), end='')"
    return _on_both(["-c", tell], ["-c", tell], {})


def _expect_route(env: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Check that the hosts' NICs carry the traffic, or that the log names the route instead."""
    without = WITHOUT_RDMA.keys() <= env.keys()
    assert any(BY_TCP in output for output in outputs) == without, outputs


@both_ways
def test_transfer_example_reads_and_writes_in_every_way(env: dict[str, str]) -> None:
    where = ["--target", f"{nodes.ADDRESS}:{nodes.free_port()}", "--device", "cpu"]
    program = [str(EXAMPLES / "transfer.py"), "all", *where, "--role"]
    target, initiator = _on_both([*program, "target"], [*program, "initiator"], env)
    assert "was told 77" in target
    assert re.search(r"^read +16 MiB in +[\d.]+ ms", initiator, re.MULTILINE)
    assert f"reached by {'tcp' if env else 'rdma'}" in initiator
    _expect_route(env, [target, initiator])


class Place(NamedTuple):
    """An end of a program: the target or rank 0 (on this host), or the initiator or rank 1."""

    end: int
    hosts: list[str]
    ports: list[int]  # free ports

    def at(self, end: int) -> str:
        """Return the address of an end; the target's address is also rank 0's."""
        return f"{self.hosts[end]}:{self.ports[end]}"

    def rank(self, port: int) -> dict[str, str]:
        """Return the variables by which torchrun makes the end a rank."""
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}
        at = {"MASTER_ADDR": self.hosts[0], "MASTER_PORT": str(self.ports[port])}
        return {"RANK": str(self.end), **alone, **at}


def _examples(place: Place) -> list[Program]:
    """Return the examples of the original with two ends that may be two processes."""
    role = ["--role", ("target", "initiator")[place.end]]
    names = test_original_programs.EXAMPLES
    return [(name, {}, [*role, "--address", place.at(0)]) for name in names]


def _other_examples(place: Place) -> list[Program]:
    """Return the examples with options of their own."""
    role, mode = (("target", "recv"), ("initiator", "send"))[place.end]
    own, other = place.end, 1 - place.end
    ports = ["--local-port", str(place.ports[own]), "--remote-port", str(place.ports[other])]
    peer = ["--remote-host", place.hosts[other], *ports]
    urls = ["--target-url", place.at(0), "--initiator-url", place.at(1)]
    return [
        ("oldest_sendrecv", {}, ["--mode", mode, *peer]),
        ("post_nvlink", {}, ["--role", role, *urls]),
        ("nvlink_ranks", place.rank(2), []),
        ("send_recv_torch", {}, ["--rank", str(own), "--address", place.at(0)]),
    ]


def _benchmarks(place: Place) -> list[Program]:
    """Return the benchmarks of the original with ends in two processes."""
    some = ["--num-iteration", "4", "--num-concurrency", "3", "--size", "8", "14"]
    pair = ["--target-endpoint", place.at(0), "--initiator-endpoint", place.at(1)]
    pair += ["--rank", str(1 - place.end), "--size", "8", "14", "--iterations", "5"]
    sizes = ["--buffer_size", "1000000", "--block_size", "30000", "--batch_size", "33"]
    blocks = ["--target_endpoint", place.at(0), "--initiator_endpoint", place.at(1), *sizes]
    blocks += ["--mode", ("target", "initiator")[place.end], "--duration", "0.5"]
    messages = ["--mode", ("send", "recv")[place.end], "--master-port", str(place.ports[5])]
    return [
        ("bench_agg", place.rank(2), ["--opcode", "write", *some]),
        ("bench_agg_post10", place.rank(3), ["--opcode", "read", *some]),
        ("bench_sendrecv", place.rank(4), ["--size", "512", "4096", "--num-iteration", "5"]),
        ("bench_transfer_post10", {}, pair),
        ("bench_transfer_blocks", {}, blocks),
        (
            "bench_torch_dist_sendrecv",
            {"MASTER_ADDR": place.hosts[0]},
            [*messages, "--sizes", "1024", "65536", "--iterations", "5"],
        ),
    ]


@both_ways
@pytest.mark.parametrize("programs", [_examples, _other_examples, _benchmarks])
def test_programs_of_the_original(programs: Any, env: dict[str, str]) -> None:
    hosts, ports = _addresses(), [nodes.free_port() for _ in range(6)]
    runner = str(PROGRAMS / "original" / "in_turn.py")
    asked = [programs(Place(end, hosts, ports)) for end in range(2)]
    env = {**env, **test_original_programs.ENVIRONMENT}
    here, there = ([runner, json.dumps(listed)] for listed in asked)
    outputs = _on_both(here, there, env)
    for output in outputs:
        for name, _, _ in asked[0]:
            begun, _, after = output.partition(f"{name}: begins")
            assert begun != output, f"{name} has not begun:\n{output}"
            assert "all right" in after.partition(": begins")[0], f"{name}:\n{after}"
    _expect_route(env, outputs)


def _expect_worlds_route(env: dict[str, str], results: list[Any]) -> None:
    _expect_route(env, [output for _, output in results])


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    fetch.fetch()


@both_ways
def test_blocks_of_vllm(env: dict[str, str]) -> None:
    devices, options = ["cpu", "cpu"], {"layout": "LBNHC", "ranks": 2}
    own = {**test_vllm_connector.OWN, **env}
    moved = test_vllm_connector._moved
    results = run_world(moved, 2, devices, options, init=False, env=own, with_output=True)
    _expect_worlds_route(env, results)


@both_ways
def test_pages_of_sglang(env: dict[str, str]) -> None:
    hosts = _addresses()
    own = [{**test_sglang.ENV, "SGLANG_HOST_IP": host, "NO_PROXY": "*", **env} for host in hosts]
    port, moved = nodes.free_port(), test_sglang._move
    results = run_world(moved, 2, port, "cpu", init=False, env=own, fresh=True, with_output=True)
    _expect_worlds_route(env, results)


@both_ways
def test_blocks_of_lmdeploy(env: dict[str, str]) -> None:
    own = {**test_lmdeploy.IN_LOOP, **env}
    moved = test_lmdeploy._move
    results = run_world(moved, 2, "RDMA", init=False, env=own, fresh=True, with_output=True)
    _expect_worlds_route(env, results)


@both_ways
@pytest.mark.parametrize("ends", ["killed", "released"])
def test_transfers_of_nixl(ends: str, env: dict[str, str]) -> None:
    may_die = [1] if ends == "killed" else []
    results = run_world(
        test_nixl._target, 2, ends, init=False, env=env, may_die=may_die, with_output=True
    )
    if ends == "released":
        _expect_worlds_route(env, results)
