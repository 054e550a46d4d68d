"""The first use of a backend in a process, 2 to 32 ranks on one host: dlslime against Gloo.

    python benchmarks/startup.py                       everything, about ten minutes
    python benchmarks/startup.py --rounds 3 --ranks 8  fewer samples, of one size (repeat --ranks)
    python benchmarks/startup.py --resolver silent     only without an answering resolver

Each sample has new processes, which import torch and the backend before they meet. The exit status
is 0 for any times, 1 if wrong data arrived, or a rank died or did not end in time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import limit
from measuring import report
from measuring.harness import JobError, Neighbours
from measuring.report import Figure, at_most, summary
from startup_ranks import STEPS, Sample

RANKS = [2, 8, 16, 32]
RESOLVERS = ["own", "prompt", "silent"]  # the machine's; one that answers; one that never does
NAMES = {
    "init": "init",
    "message": "first message",
    "all_reduce": "first all_reduce",
    "all": "all three",
    "lookups": "look-ups",
    "lookups_after_init": "look-ups after init",
}


@dataclass
class Plan:
    """The choices of the command line, and a folder for temporary files."""

    backends: dict[str, str]
    rounds: int
    seconds: float
    counter: Path | None
    folder: Path

    def sample(self, world: int, resolver: str, slot: str) -> dict[str, float]:
        """Return the milliseconds of each step in a job of new processes, and its look-ups."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        sample = Sample(world, self.backends[slot], self.seconds, str(answer))
        said = self._run(sample, self._environment(world, resolver))
        if not answer.exists():
            raise JobError(f"no answer from the ranks' launcher: {said[-2000:]}")
        found = json.loads(answer.read_text())
        if "error" in found:
            raise JobError(found["error"])
        return _of_all(found["ranks"])

    def _environment(self, world: int, resolver: str) -> dict[str, str]:
        """Return the environment that torchrun sets for ranks."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        env |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "RESOLVER": resolver}
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if self.counter is not None:
            env["LD_PRELOAD"] = str(self.counter)
        return env

    def _run(self, sample: Sample, env: dict[str, str]) -> str:
        """Return the output of the launcher and its ranks."""
        program = Path(__file__).with_name("startup_ranks.py")
        command = [sys.executable, str(program), json.dumps(asdict(sample))]
        log = self.folder / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, start_new_session=True
            )
        try:
            process.wait(self.seconds + 60)
        except subprocess.TimeoutExpired:
            pass  # the missing answer shows the time-out
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the ranks, too
                process.wait()
        return log.read_text(errors="replace")


def _of_all(ranks: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the times from the first rank's start of a step to the last rank's end."""
    taken = {
        step: (max(r[step][1] for r in ranks) - min(r[step][0] for r in ranks)) * 1e3
        for step in STEPS
    }
    lookups, during_init = (sum(r[key] for r in ranks) for key in ("lookups", "lookups_init"))
    counts = {"lookups": lookups, "lookups_after_init": lookups - during_init}
    return {**taken, "all": sum(taken.values()), **counts}


def _is_count(step: str) -> bool:
    return step.startswith("lookups")


def compare(plan: Plan, world: int, resolver: str) -> Iterator[Figure]:
    """Measure a number of ranks with a resolver."""
    samples: dict[str, list[dict[str, float]]] = {slot: [] for slot in plan.backends}
    for number in range(plan.rounds):
        for slot in plan.backends if number % 2 == 0 else reversed(plan.backends):
            samples[slot].append(plan.sample(world, resolver, slot))
    for key, name in NAMES.items():
        ours, base = (summary([s[key] for s in samples[slot]]) for slot in ("ours", "base"))
        values = (ours["median"], base["median"])
        target: dict[str, Any] = {"ratio": None}
        if not _is_count(key):
            target = at_most(round(values[0] / values[1], 2), 1.0)
        details = {"ranks": world, "resolver": resolver, "step": key, "ours": ours, "base": base}
        part = f"{world} ranks, {resolver}"
        yield Figure(part, name, "" if _is_count(key) else "ms", *values, **target, details=details)


def run_all(plan: Plan, worlds: list[int], resolvers: list[str]) -> tuple[list[Figure], list[str]]:
    """Measure every figure, printed once known; a failure doesn't stop the rest."""
    figures: list[Figure] = []
    errors: list[str] = []
    neighbours = Neighbours()
    for resolver in resolvers:
        for world in worlds:
            try:
                for figure in compare(plan, world, resolver):
                    figure.others = neighbours.share()
                    figures.append(figure)
                    print(report.line(figure), flush=True)
            except JobError as error:
                errors.append(f"{world} ranks, {resolver} resolver: {error}")
                print(errors[-1], flush=True)
    return figures, errors


def _cell(step: str, value: float | None) -> str:
    text = "" if value is None else f"{value:,.0f}" if _is_count(step) else f"{value:,.2f}"
    return f" {text:>19s}"


def table(figures: Sequence[Figure], ours: str, base: str) -> str:
    """Return a line for each backend, number of ranks and resolver, and lines of ratios."""
    lines = [" " * 29 + "".join(f" {name:>19s}" for name in NAMES.values())]
    for at in range(0, len(figures), len(NAMES)):
        group = figures[at : at + len(NAMES)]
        for label, field in ((ours, "value"), (base, "baseline"), ("ratio", "ratio")):
            cells = [_cell(f.details["step"], getattr(f, field)) for f in group]
            lines.append(f"{group[0].part:16s} {label:12s}" + "".join(cells))
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, action="append", help="this many (repeatable)")
    parser.add_argument("--resolver", action="append", choices=RESOLVERS, help="only this one")
    parser.add_argument("--seconds", type=float, default=120, help="time limit of a sample")
    parser.add_argument("--out", default="startup", help="name of the file in benchmarks/results")
    parser.add_argument("--ours", default="dlslime", help="the backend to judge")
    parser.add_argument("--base", default="gloo", help="the backend to compare with")
    return parser.parse_args()


def main() -> int:
    """Run the samples asked for and report the figures."""
    asked = arguments()
    about = report.environment()
    for key, value in about.items():
        print(f"{key:14s} {value}")
    print()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backends = {"base": asked.base, "ours": asked.ours}
        counter = limit.build_resolver(folder)
        plan = Plan(backends, asked.rounds, asked.seconds, counter, folder)
        resolvers = asked.resolver or RESOLVERS
        if counter is None:
            resolvers = [resolver for resolver in resolvers if resolver == "own"]
        figures, errors = run_all(plan, asked.ranks or RANKS, resolvers)
    base = asked.base if asked.base != asked.ours else f"{asked.base} (again)"
    print(f"\n{table(figures, asked.ours, base)}")
    out = report.HERE / "results" / Path(asked.out).with_suffix(".json").name
    report.save(out, about, figures, errors)
    print(f"\n{len(errors)} errors; written to benchmarks/results/{out.name}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
