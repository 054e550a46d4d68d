"""Programs that call the original DLSlime's API as its examples and benchmarks do, unchanged.

Each generation of the API has programs in `programs/original`: oldest (March 2025), post
(0.0.1.post7 to post10), keys (0.0.2), today (0.0.3 and later). The programs import `dlslime` or
`slime` before torch, and check every byte received.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import dlslime_only
from nodes import free_port
from paths import BENCHMARKS, PROGRAMS

sys.path.append(str(PROGRAMS / "original"))

from catalogue import FOLDERS, path_of  # noqa: E402

LAUNCH = BENCHMARKS / "gpu" / "runner" / "launch.py"
ENVIRONMENT = {"DLSLIME_PROVIDE": "dlslime,slime", "OMP_NUM_THREADS": "1"}
SECONDS = 100

# Both ends in one process as in the original, or each in its own.
EXAMPLES = [
    "oldest_page",
    "oldest_p2p",
    "post_rc_read",
    "post_rc_read_coroutine",
    "post8_p2p",
    "post_rc_write",
    "post_rc_write_with_imm_data",
    "post_send_recv",
    "post_send_recv_gdr",
    "keys_rc_read",
    "keys_rc_write",
    "keys_rc_write_with_imm_data",
    "keys_by_address",
    "today_rc_read",
    "today_rc_write",
    "today_rc_write_with_imm_data",
    "today_send_recv_gdr",
    "lmdeploy_calls",
    "lmdeploy_calls_post",
]
ON_GPUS = ["post_send_recv_gdr", "keys_rc_write_with_imm_data", "today_rc_read", "lmdeploy_calls"]
STRESS = ["shutdown_cancel", "stress_imm_recv", "stress_send_recv", "stress_concurrent"]

pytestmark = dlslime_only


class Run:
    """Programs that run at the same time: lists of a name and arguments."""

    def __init__(self, *commands: Sequence[str], runner: Sequence[str] = ()) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  outcome() closes the file
        # A runner does not add the programs' folder to the path of Python.
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(FOLDERS)}
        self._started = [
            subprocess.Popen(
                [sys.executable, *runner, path_of(program), *arguments],
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            for program, *arguments in commands
        ]
        self._deadline = time.monotonic() + SECONDS

    def outcome(self) -> Outcome:
        """Wait for all programs; after a failure or the time-out, kill the remaining programs."""
        while any(process.poll() is None for process in self._started):
            if any(process.poll() for process in self._started):
                self._deadline = min(self._deadline, time.monotonic() + 5)
            if time.monotonic() > self._deadline:
                break
            time.sleep(0.02)
        for process in self._started:
            process.kill()
        statuses = [process.wait() for process in self._started]
        with self._log:
            self._log.seek(0)
            return Outcome(statuses, self._log.read())


class Outcome(NamedTuple):
    """The exit statuses of programs, and the output of all."""

    statuses: list[int]
    output: str

    def expect_good(self) -> str:
        """Check that every program has come to its end; return the output."""
        assert not any(self.statuses), f"statuses {self.statuses}:\n{self.output}"
        assert self.output.count("all right") == len(self.statuses), self.output
        return self.output


def run(*commands: Sequence[str], runner: Sequence[str] = ()) -> str:
    """Run programs at the same time; return the output of all."""
    return Run(*commands, runner=runner).outcome().expect_good()


@functools.cache
def outcomes(program: str) -> dict[str, Outcome]:
    """Run an example in one process and in two, at the same time, to use both processors."""
    where = addresses("--address")
    roles = [[program, "--role", role, *where] for role in ("target", "initiator")]
    runs = {"one process": Run([program]), "two processes": Run(*roles)}
    return {mode: started.outcome() for mode, started in runs.items()}


def addresses(*options: str) -> list[str]:
    """Return the options, each with an address of the host."""
    return [text for option in options for text in (option, f"127.0.0.1:{free_port()}")]


def run_ranks(program: str, ranks: int, *arguments: str) -> str:
    """Run the ranks of a program of torch.distributed, as torchrun does."""
    command = [sys.executable, str(LAUNCH), str(ranks), path_of(program), *arguments]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(FOLDERS)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as launch:
        try:
            output, _ = launch.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            launch.kill()
            raise
    assert launch.returncode == 0, output
    assert output.count("all right") == ranks, output
    return output


@pytest.mark.parametrize("mode", ["one process", "two processes"])
@pytest.mark.parametrize("program", EXAMPLES)
def test_example(program: str, mode: str) -> None:
    outcomes(program)[mode].expect_good()


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize("program", ON_GPUS)
def test_example_on_a_gpu(program: str) -> None:
    run([program, "--device", "cuda"], runner=[str(PROGRAMS / "cuda" / "on_fake_gpus.py")])


def test_oldest_message_between_two_processes() -> None:
    ports = [str(free_port()), str(free_port())]
    send, recv = (["--local-port", a, "--remote-port", b] for a, b in (ports, ports[::-1]))
    run(
        ["oldest_sendrecv", "--mode", "recv", *recv],
        ["oldest_sendrecv", "--mode", "send", *send],
    )


def test_nvlink_read_that_no_thread_waits_for_between_two_processes() -> None:
    urls = addresses("--initiator-url", "--target-url")
    run(*(["post_nvlink", "--role", role, *urls] for role in ("target", "initiator")))


@pytest.mark.parametrize("options", [[], ["--keys"]], ids=["names", "keys"])
def test_nvlink_read_that_no_thread_waits_for_between_ranks(options: list[str]) -> None:
    run_ranks("nvlink_ranks", 2, *options)


def test_batches_of_torch_messages() -> None:
    where = addresses("--address")
    run(*(["send_recv_torch", "--rank", rank, *where] for rank in "01"))


@pytest.mark.parametrize("program", STRESS)
def test_stress_with_one_two_and_four_queue_pairs(program: str) -> None:
    run([program])


@pytest.mark.parametrize(
    ("program", "opcode", "ranks"),
    [
        ("bench_agg", "write", 4),
        ("bench_agg", "read", 2),
        ("bench_agg_post10", "write", 2),
        ("bench_agg_post10", "read", 4),
    ],
)
def test_aggregated_transfer_benchmark(
    program: str, opcode: str, ranks: int, tmp_path: Path
) -> None:
    file = tmp_path / "output.csv"
    load = ["--size", "8", "9", "--batch-size", "2", "--num-concurrency", "3"]
    options = ["--num-iteration", "4", "--qp-num", "2", "--save-csv", "--csv-filename", str(file)]
    output = run_ranks(program, ranks, "--opcode", opcode, *load, *options)
    assert output.count("| dlslime ") == 2
    header, row, _ = file.read_text().splitlines()
    assert header.startswith("Transfer Engine,#Channels,Message Size (bytes),Batch Size,")
    assert row.startswith(f'dlslime,{ranks // 2},"2,048",2,3,"49,152",')


@pytest.mark.parametrize("options", [["read"], ["write", "--with-imm-data"]], ids=" ".join)
def test_transfer_benchmark(options: list[str]) -> None:
    load = ["--size", "8", "10", "--num-concurrency", "4", "--iterations", "5"]
    arguments = [*addresses("--target-endpoint", "--initiator-endpoint"), *load]
    arguments += ["--opcode", *options]
    output = run(*(["bench_transfer_post10", "--rank", rank, *arguments] for rank in "10"))
    assert "| 8,192 " in output


def test_message_benchmark() -> None:
    output = run_ranks("bench_sendrecv", 2, "--size", "512", "4096", "--num-iteration", "5")
    assert "| 16,384 " in output


def test_torch_message_benchmark() -> None:
    load = ["--sizes", "1024", "65536", "--iterations", "5", "--master-port", str(free_port())]
    output = run(
        *(["bench_torch_dist_sendrecv", "--mode", mode, *load] for mode in ("send", "recv"))
    )
    assert "| 65,536 " in output


@pytest.mark.parametrize("kind", ["io", "sendrecv"])
def test_endpoint_benchmark(kind: str) -> None:
    output = run(["bench_endpoint", kind, "--iters", "5", "--most", "262144", "--qp", "2"])
    assert "| 262,144 " in output


def test_benchmark_of_blocks_for_some_seconds() -> None:
    sizes = ["--buffer_size", "1000000", "--block_size", "30000", "--batch_size", "33"]
    arguments = [*addresses("--initiator_endpoint", "--target_endpoint"), *sizes]
    arguments += ["--duration", "0.2", "--concurrent_num", "3"]
    modes = ("target", "initiator")
    output = run(*(["bench_transfer_blocks", "--mode", mode, *arguments] for mode in modes))
    assert "Throughput: " in output
