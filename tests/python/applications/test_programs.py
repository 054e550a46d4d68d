"""Programs for torch.distributed run with dlslime without any change but the backend's name.

The programs are functions in `programs/`; each function compares its results with those of one
process or with known data. All programs with an equal number of ranks and an equal environment
share a torchrun launch, because starting Python and importing torch takes longer than the programs
do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness import BACKEND, dlslime_only
from paths import PROGRAMS
from programs.torchrun import torchrun

LAUNCHER = PROGRAMS / "launch.py"

SCHEDULES = [
    "pipelining.gpipe",
    "pipelining.one_f_one_b",
    "pipelining.looped_bfs",
    "pipelining.interleaved_1f1b",
    "pipelining.interleaved_zero_bubble",
    "pipelining.zbv_zero_bubble",
    "pipelining.dual_pipe_v",
]
TRAINING = [
    "training.ddp",
    "training.ddp_accumulates_without_sync",
    "training.fsdp2",
    "training.tensor_parallel",
    "training.dtensor",
]
MESHES = ["training.fsdp2_with_tensor_parallel", "training.hsdp"]
RINGS = ["attention.ring", "attention.ring_causal", "attention.ring_on_two_groups"]
CHECKPOINTS = ["checkpoint.save_and_load", "checkpoint.async_save", "checkpoint.plain_state"]
MESSAGES = [
    "messages.vllm_pipeline",
    "messages.vllm_pipeline_reaped_by_polling",
    "messages.sglang_tags",
    "messages.torch_objects",
]
HAND_OFF = ["handoff.waited", "handoff.polled"]
# Gloo's operations complete only inside wait(): the programs never call wait().
POLLING = {"handoff.polled", "messages.vllm_pipeline_reaped_by_polling"}
# A program of each kind, for environments that change only how messages travel.
SAMPLE = [
    "pipelining.one_f_one_b",
    "pipelining.zbv_zero_bubble",
    "training.fsdp2",
    *RINGS,
    *MESSAGES,
    *HAND_OFF,
]
ENVIRONMENTS = {
    "plain": {},
    "detail": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "staged": {"DLSLIME_CMA": "off"},
    "tcp_route": {"DLSLIME_ROUTE": "tcp"},
    "gloo_route": {"DLSLIME_ROUTE": "gloo"},
}
PLAN: list[tuple[int, str, list[str]]] = [
    (2, "plain", [*SCHEDULES, *TRAINING, *RINGS, *CHECKPOINTS, *MESSAGES, *HAND_OFF]),
    # The tensor-parallel model has 4 heads and the hand-off needs pairs: neither divides by 3.
    (3, "plain", ["training.ddp", "training.fsdp2", *RINGS, *MESSAGES, *CHECKPOINTS[:1]]),
    (4, "plain", [*SCHEDULES, *TRAINING, *MESHES, *RINGS, *MESSAGES, *HAND_OFF]),
    (2, "detail", SAMPLE),
    (2, "staged", SAMPLE),
    (2, "tcp_route", SAMPLE),
    (2, "gloo_route", SAMPLE),
]


@dataclass(frozen=True)
class Launch:
    """The common environment of the programs of a torchrun launch."""

    ranks: int
    environment: str


@dataclass
class Results:
    """Outcomes of all programs run so far: an empty string, or a description of the failure."""

    wanted: dict[Launch, list[str]]
    scratch: pytest.TempPathFactory
    outcomes: dict[tuple[Launch, str], str] = field(default_factory=dict)

    def of(self, launch: Launch, program: str) -> str:
        """Return a program's outcome, after running all programs wanted from its launch."""
        waiting = [p for p in self.wanted[launch] if (launch, p) not in self.outcomes]
        while (launch, program) not in self.outcomes:
            outcomes = run_launch(launch, waiting, self.scratch.mktemp("launch"))
            self.outcomes.update({(launch, name): text for name, text in outcomes.items()})
            waiting = waiting[len(outcomes) :]
        return self.outcomes[launch, program]


def run_launch(launch: Launch, programs: list[str], scratch: Path) -> dict[str, str]:
    """Run programs up to the first failure; return the outcomes of the programs that ran."""
    status, output = torchrun(
        LAUNCHER,
        ["--backend", BACKEND, "--results", str(scratch), *programs],
        launch.ranks,
        scratch,
        env=ENVIRONMENTS[launch.environment],
    )
    passed: dict[str, int] = defaultdict(int)
    errors: dict[str, str] = defaultdict(str)
    for path in sorted(scratch.glob("rank*.jsonl")):
        for record in map(json.loads, path.read_text().splitlines()):
            passed[record["program"]] += not record["error"]
            if record["error"]:
                errors[record["program"]] += f"{path.stem}: {record['error']}\n"
    outcomes = {}
    for program in programs:
        whole = passed[program] == launch.ranks
        last_words = program == programs[-1] and status != 0
        if whole and not last_words:
            outcomes[program] = ""
            continue
        ending = "killed at the deadline" if status is None else f"exit status {status}"
        outcomes[program] = (
            f"passed on {passed[program]} of {launch.ranks} ranks; launch: {ending}\n"
            f"{errors[program]}{output[-6000:]}"
        )
        break
    return outcomes


def wanted_programs(items: Iterable[pytest.Item]) -> dict[Launch, list[str]]:
    """Collect the programs of the module's selected tests, so that no other programs are run."""
    wanted: dict[Launch, list[str]] = defaultdict(list)
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        skipped = any(mark.args[0] for mark in item.iter_markers("skipif"))
        if isinstance(parameters.get("launch"), Launch) and not skipped:
            wanted[parameters["launch"]].append(parameters["program"])
    return wanted


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the session's launches, each made when a test first asks for one of its programs."""
    return Results(wanted_programs(request.session.items), tmp_path_factory)


def cases() -> list:
    """Return a test parameter for every program of every launch."""
    parameters = []
    for ranks, environment, programs in PLAN:
        for program in programs:
            marks = []
            # Gloo completes no operation without a wait, and has no routes to choose from.
            if program in POLLING or environment in ("staged", "tcp_route", "gloo_route"):
                marks.append(dlslime_only)
            launch = Launch(ranks, environment)
            name = f"{ranks}-{environment}-{program}"
            parameters.append(pytest.param(launch, program, id=name, marks=marks))
    return parameters


@pytest.mark.parametrize(("launch", "program"), cases())
def test_program(results: Results, launch: Launch, program: str) -> None:
    outcome = results.of(launch, program)
    assert not outcome, outcome
