"""torch's own c10d tests, shipped in its wheel: tests that pass over gloo must pass over dlslime.

`programs/torch_suite_cases.py` lists the tests, and why some are left out;
`programs/torch_suite_runner.py` says how the tests get the name of a backend. With Gloo
(DLSLIME_TEST_BACKEND=gloo) all tests of the module pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from harness import BACKEND
from paths import PROGRAMS
from programs import torch_probe
from programs import torch_suite_cases as cases

RUNNER = PROGRAMS / "torch_suite_runner.py"
# The first record comes once torch is imported; the runner ends a hanging test after 60 s.
RECORD_SECONDS = 90


@dataclass(frozen=True)
class Run:
    """The common parameters of the tests of a runner process."""

    ranks: int
    as_for: str = "gloo"
    debug: str = "OFF"


PLAN: list[tuple[str, Run, list[str]]] = [
    ("2", Run(2), cases.POINT_TO_POINT),
    (
        "3",
        Run(3),
        [
            *cases.POINT_TO_POINT,
            *cases.GROUPS,
            *cases.COLLECTIVES,
            *cases.OBJECTS,
            *cases.DATA_PARALLEL,
        ],
    ),
    ("3-all_to_all", Run(3, as_for="mpi"), cases.ALL_TO_ALL),
    ("4", Run(4), [*cases.FOUR_RANKS, "test_send_recv_any_source", "test_batch_isend_irecv_gloo"]),
    ("3-detail", Run(3, debug="DETAIL"), [*cases.POINT_TO_POINT, *cases.OBJECTS, "test_barrier"]),
]


class Runner:
    """A process that works through the tests of a Run; each pytest test waits for its record."""

    def __init__(self, run: Run, names: list[str], scratch: Path) -> None:
        self.results = scratch / "results.jsonl"
        self.log = scratch / "output.txt"
        self.results.touch()
        variables = {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": run.debug}
        command = [sys.executable, str(RUNNER), "--backend", BACKEND, "--as-for", run.as_for]
        command += ["--world-size", str(run.ranks), "--results", str(self.results), *names]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | variables
            )

    def record(self, name: str) -> dict:
        """Return the outcome of a test once written."""
        deadline = time.monotonic() + RECORD_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for line in self.results.read_text().splitlines():
                if line.endswith("}") and json.loads(line)["test"] == name:
                    return json.loads(line)
            if ended:
                break
            time.sleep(0.05)
        pytest.fail(f"no result of {name}; the runner wrote:\n{self.log.read_text()[-6000:]}")

    def close(self) -> None:
        """End the process, and with the process the ranks of the current test."""
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="module")
def runners(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Run, Runner]]:
    """Return the session's runners, each started when a test first asks for the runner."""
    wanted: dict[Run, list[str]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        skipped = any(mark.args[0] for mark in item.iter_markers("skipif"))
        if isinstance(parameters.get("run"), Run) and not skipped:
            wanted.setdefault(parameters["run"], []).append(parameters["name"])

    class Started(dict):
        def __missing__(self, run: Run) -> Runner:
            self[run] = Runner(run, wanted[run], tmp_path_factory.mktemp("suite"))
            return self[run]

    started = Started()
    yield started
    for runner in started.values():
        runner.close()


def parameters() -> list:
    """Return a test parameter for each of torch's tests in each run."""
    denied = {} if BACKEND == "gloo" else torch_probe.denials()
    listed = []
    for label, run, names in PLAN:
        for name in names:
            why = denied.get(cases.DENIABLE.get(name, ""), "")
            marks = [pytest.mark.skipif(True, reason=why)] if why else []
            listed.append(pytest.param(run, name, id=f"{label}-{name}", marks=marks))
    return listed


@pytest.mark.parametrize(("run", "name"), parameters())
def test_torch(runners: dict[Run, Runner], run: Run, name: str) -> None:
    record = runners[run].record(name)
    if record["outcome"] == "absent":
        pytest.skip(f"torch {torch.__version__} has no test of this name")
    assert record["outcome"] == "passed", record["text"]
