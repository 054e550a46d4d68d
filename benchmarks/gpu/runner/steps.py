"""Runs commands as steps: each limited in time, ended for good, and recorded once over.

A step's processes carry a mark in their environment. After the step, every process with the mark is
killed, in any session or group: ranks that hang would hold the GPU otherwise. A step's output goes
to a file, which can't delay the runner, unlike a pipe held by a survivor.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.runner.findings import FINDINGS

MARK = "DLSLIME_GPU_CHECK_STEP"  # the variable that marks a step's processes
RESERVE_S = 12.0  # of the budget, for ending the last step, saving and the table
LEAST_S = 2.0  # the least time left for beginning a step
KILL_S = 8.0  # until processes that survive SIGKILL are given up
TAIL = 6000  # characters of a failed step's output that the results keep
LOG_TAIL = 200_000  # characters of any step's output that the log keeps


@dataclass
class Step:
    """A command, and the conditions for running the command.

    Attributes:
        limit_s: seconds after which the step is stopped; less if the budget ends sooner.
        needs: names of earlier steps, or of facts, required for beginning the step.
        environ: variables beside those of all steps.
    """

    name: str
    command: list[str]
    limit_s: float
    needs: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)


def marked(mark: str) -> list[int]:
    """Return the ids of all processes with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _kill_until_gone(mark: str, left: list[int]) -> None:
    """Kill marked processes until none is left; `left` holds the remaining ids."""
    end = time.monotonic() + KILL_S
    while time.monotonic() < end:
        left[:] = marked(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def end_marked(mark: str) -> list[int]:
    """Kill every process with the mark; return processes that a broken driver keeps from ending."""
    left: list[int] = []
    # On a thread: reading the environment of a process may not end if the kernel holds the memory.
    sweep = threading.Thread(target=_kill_until_gone, args=(mark, left), daemon=True)
    sweep.start()
    sweep.join(KILL_S + 2)
    return list(left)


def show_stacks(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Make Python programs with the mark write their stacks, and end (PYTHONFAULTHANDLER)."""
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGABRT)
    time.sleep(0.5)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


class Runner:
    """Runs steps within a budget, and keeps the outcomes in a `Results`.

    Attributes:
        patience: factor for the limits of all steps.
    """

    patience = 1.0

    def __init__(self, results: Any, budget_s: float, environ: dict[str, str], root: Path) -> None:
        self.results = results
        self.environ = {**environ, "PYTHONFAULTHANDLER": "1"}
        self.root = root
        self.facts: set[str] = set()  # facts that later steps may need
        self.missing: dict[str, str] = {}  # the reason for a missing fact
        self._begin = time.monotonic()
        self._budget_s = budget_s
        self._number = 0

    def left_s(self) -> float:
        """Return the seconds of the budget that steps may still use."""
        return self._begin + self._budget_s - RESERVE_S - time.monotonic()

    def elapsed_s(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._begin

    def learn(self, fact: str, true: bool, otherwise: str) -> None:
        """Note whether a fact holds, and `otherwise`, the outcome of steps that need the fact."""
        if true:
            self.facts.add(fact)
        else:
            self.missing[fact] = otherwise

    def run(self, step: Step) -> bool:
        """Run a step and save everything; returns after any failure of the step."""
        record: dict[str, Any] = {"step": step.name, "outcome": "failed", "seconds": 0.0}
        try:
            print(f"== {step.name}", flush=True)
            reason = self._refusal(step)
            if reason:
                record["outcome"] = reason
            else:
                self._run(step, record)
        except Exception:  # noqa: BLE001 - one step's failure never loses the others
            record["outcome"] = "failed"
            record["output"] = traceback.format_exc()
        except BaseException as error:
            record["outcome"] = f"interrupted: {type(error).__name__} {error}".rstrip()
            self._keep(record)
            raise
        self._keep(record)
        return bool(record["outcome"] == "ok")

    def _refusal(self, step: Step) -> str:
        """Return the reason against beginning a step, or ""."""
        for need in step.needs:
            if need not in self.facts:
                return self.missing.get(need, f"not run: {need} did not pass")
        return "no time left" if self.left_s() < LEAST_S else ""

    def _run(self, step: Step, record: dict[str, Any]) -> None:
        self._number += 1
        mark = f"{os.getpid()}-{self._number}"
        findings = self.results.scratch / f"{self._number}.json"
        output = self.results.scratch / f"{self._number}.log"
        variables = {**self.environ, **step.environ, MARK: mark, FINDINGS: str(findings)}
        limit_s = min(step.limit_s * self.patience, self.left_s())
        start = time.monotonic()
        left: list[int] = []
        try:
            with output.open("wb") as file:
                process = subprocess.Popen(
                    step.command,
                    cwd=self.root,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            record["outcome"] = self._outcome(process, limit_s, mark)
        finally:
            left = end_marked(mark)
            record["seconds"] = round(time.monotonic() - start, 2)
            text = output.read_text(errors="replace") if output.exists() else ""
            self._take(step, record, text, findings)
        if left:
            record["not_ended"] = left
            record["output"] = f"processes {left} do not end by SIGKILL\n{record['output']}"

    @staticmethod
    def _outcome(process: subprocess.Popen[bytes], limit_s: float, mark: str) -> str:
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            show_stacks(mark, process)
            return f"stopped after {limit_s:.3g} s"
        if status < 0:
            return f"died of {signal.Signals(-status).name}"
        return "ok" if status == 0 else f"failed with status {status}"

    def _take(self, step: Step, record: dict[str, Any], text: str, findings: Path) -> None:
        """Keep the output and the findings of a step, also of a stopped step."""
        self.results.log(step.name, text[-LOG_TAIL:])
        record["output"] = "" if record["outcome"] == "ok" else text[-TAIL:]
        if findings.exists():
            self.results.merge(step.name, json.loads(findings.read_text()))

    def _keep(self, record: dict[str, Any]) -> None:
        good = record["outcome"] == "ok"
        if good:
            self.facts.add(record["step"])
        tail = "" if good or not record.get("output") else "\n" + record["output"].rstrip()
        print(f"   {record['outcome']}, {record.get('seconds', 0):g} s{tail}", flush=True)
        self.results.add(record, self.elapsed_s())
