"""Point-to-point between two ranks of one host: dlslime against Gloo, in a common run.

    python benchmarks/p2p.py                 everything, about five minutes
    python benchmarks/p2p.py --quick         everything, fewer sizes and rounds
    python benchmarks/p2p.py --only latency  one part (repeat --only for more)

The exit status is 0 for any times, 1 if wrong data arrived or a rank died.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import limit
from measuring import parts, progress, report
from measuring.harness import JobError, Neighbours, PayloadError, run_job, two_cores
from measuring.report import Figure, at_least, at_most, size_name, summary

SIZES = [8, 64, 512, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10]
SIZES += [1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20]
QUICK_SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
STILL_SIZES = [8 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20]

# Factors by which the one-way speed has to exceed Gloo's, by size.
LATENCY_FACTORS = {size: 6.0 for size in SIZES if size <= 8 << 10}
LATENCY_FACTORS |= {64 << 10: 5.0, 1 << 20: 4.0, 16 << 20: 1.8, 128 << 20: 1.8}
LIMIT_FACTOR = 1.15  # of the C program in which both ends copy a half
LIMIT_SIZES = (16 << 20, 128 << 20)
WINDOW_FACTORS = {4 << 10: 4.0, 16 << 10: 4.0, 64 << 10: 4.0}  # others: never slower
RATE_FACTOR = 6.0
BLOCKS_FACTOR = 3.0
CPU_FACTOR = 0.5
IDLE_SHARE = 0.003  # of a core: the share of an idle Gloo rank
FIRST_MESSAGE_MS = 5.0
ONE_CORE_FACTOR = 3.0
QUIET_SHARE = 0.1  # of the processors, used by other programs: above, the figure is doubtful


@dataclass
class Plan:
    """The choices of the command line."""

    backends: dict[str, str]
    quick: bool
    pin: bool
    program: Path | None

    @property
    def rounds(self) -> int:
        """Return the number of rounds of each measurement."""
        return 3 if self.quick else 11

    def job(self, work: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Run ``work`` on two ranks with a group for each backend."""
        return run_job(work, args, backends=self.backends, pin=self.pin, **options)


def _speed_up(
    part: str, name: str, samples: dict[str, list[float]], scale: float, unit: str, factor: Any
) -> Figure:
    ours, base = summary(samples["ours"], scale), summary(samples["base"], scale)
    ratio = base["median"] / ours["median"]
    details = {"ours": ours, "base": base}
    return Figure(
        part, name, unit, ours["median"], base["median"], **at_least(ratio, factor), details=details
    )


def _latency(plan: Plan, part: str, sizes: list[int], fresh: bool) -> Iterator[Figure]:
    for size in sizes:
        program = plan.program if size in (8, 64 << 10, 1 << 20, *LIMIT_SIZES) else None
        rounds = plan.rounds if size < 64 << 20 else min(plan.rounds, 7)
        samples = plan.job(parts.latency, size, rounds, fresh, plan.quick, program)[0]
        factor = LATENCY_FACTORS.get(size) if fresh else None
        figure = _speed_up(part, size_name(size), samples, 1e6, "us", factor)
        yield figure
        yield from _against_limit(part, size, figure, samples)


def _against_limit(
    part: str, size: int, figure: Figure, samples: dict[str, list[float]]
) -> Iterator[Figure]:
    for mode in ("ring", "both", "segment"):
        if samples.get(mode):
            best = median(samples[mode]) * 1e6
            target = at_most(figure.value / best, LIMIT_FACTOR)
            if mode != "both" or size not in LIMIT_SIZES:
                target = {"ratio": target["ratio"]}
            yield Figure(part, f"{size_name(size)}, C: {mode}", "us", figure.value, best, **target)


def latency(plan: Plan) -> Iterator[Figure]:
    """Measure the one-way time of dist.send/dist.recv; the bytes received are sent back."""
    yield from _latency(plan, "latency", QUICK_SIZES if plan.quick else SIZES, fresh=True)


def latency_still(plan: Plan) -> Iterator[Figure]:
    """Measure the one-way time with sources that are never written again."""
    yield from _latency(
        plan, "latency, still", STILL_SIZES[1:4] if plan.quick else STILL_SIZES, fresh=False
    )


def inflight(plan: Plan) -> Iterator[Figure]:
    """Measure 64 messages in one batch_isend_irecv."""
    sizes = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
    for size in sizes[1::2] if plan.quick else sizes:
        trips = 20 if size <= 64 << 10 else 4
        samples = plan.job(parts.batches, size, 64, plan.rounds, trips)[0]
        factor = WINDOW_FACTORS.get(size, 1.0)
        yield _speed_up("64 in flight", size_name(size), samples, 1e6 / 64, "us each", factor)


def rate(plan: Plan) -> Iterator[Figure]:
    """Measure 10,000 messages of 64 bytes."""
    samples = plan.job(parts.message_rate, 64, 10_000, 64, plan.rounds)[0]
    name = "10,000 x 64 B, windows of 64"
    yield _speed_up("rate", name, samples, 1e6 / 10_000, "us each", RATE_FACTOR)


def blocks(plan: Plan) -> Iterator[Figure]:
    """Measure 2,048 blocks in one batch, as for moving a key-value cache."""
    for size in (16 << 10, 64 << 10):
        samples = plan.job(parts.batches, size, 2048, plan.rounds, 3)[0]
        name = f"2,048 x {size_name(size)}, one batch"
        yield _speed_up("blocks", name, samples, 1e3, "ms", BLOCKS_FACTOR)


def cpu(plan: Plan) -> Iterator[Figure]:
    """Measure the processor time of both ranks for a gigabyte."""
    total = (256 if plan.quick else 1024) << 20
    for size in (1 << 20, 16 << 20):
        pairs = plan.job(parts.cpu_per_gb, size, total, max(3, plan.rounds // 2))[0]
        used = {slot: [pair[0] for pair in values] for slot, values in pairs.items()}
        ours, base = summary(used["ours"]), summary(used["base"])
        yield Figure(
            "cpu",
            f"stream of {size_name(size)}",
            "CPU s/GB",
            ours["median"],
            base["median"],
            **at_most(ours["median"] / base["median"], CPU_FACTOR),
            details={"ours": ours, "base": base},
        )
        times = {slot: [pair[1] for pair in values] for slot, values in pairs.items()}
        yield _speed_up("cpu", f"stream of {size_name(size)}", times, 1.0, "s/GB", None)


def idle(plan: Plan) -> Iterator[Figure]:
    """Measure the processor use of ranks that do nothing; each backend alone in its job."""
    shares = {
        slot: _idle_job(backend, 1.0 if plan.quick else 3.0)
        for slot, backend in plan.backends.items()
    }
    for number, name in enumerate(("after init", "after traffic")):
        ours, base = (shares[slot][number] for slot in ("ours", "base"))
        yield Figure(
            "idle",
            name,
            "% of a core",
            ours * 100,
            base * 100,
            ours / base if base else None,
            f"<= {base * 100:.2f} or 0.3",
            ours <= max(base, IDLE_SHARE),
        )


def _idle_job(backend: str, seconds: float) -> tuple[float, float]:
    """Return the busier rank's shares, of a job with one backend only."""
    ranks = run_job(parts.idle, (seconds,), backends={"only": backend})
    return max(r[0] for r in ranks), max(r[1] for r in ranks)


def init(plan: Plan) -> Iterator[Figure]:
    """Measure the time to make a group in warm processes, and for the group's first message."""
    worlds = [2, 4] if plan.quick else [2, 4, 8]
    args = (plan.backends, worlds, plan.rounds * 2)
    pairs = run_job(parts.set_up, args, backends={}, world=max(worlds))[0]
    for world in worlds:
        times = {slot: [p[0] for p in pairs[slot, world]] for slot in plan.backends}
        yield _speed_up("init", f"{world} ranks", times, 1e3, "ms", 1.0)
    for world in worlds:
        times = {slot: [p[1] for p in pairs[slot, world]] for slot in plan.backends}
        figure = _speed_up("init", f"first message, {world} ranks", times, 1e3, "ms", None)
        figure.target = f"< {FIRST_MESSAGE_MS:g} ms"
        figure.ok = figure.value < FIRST_MESSAGE_MS
        yield figure


def one_core(plan: Plan) -> Iterator[Figure]:
    """Measure both ranks on one core, against both ranks on two cores."""
    cores = two_cores()
    for size in (
        [8, 64 << 10, 16 << 20] if plan.quick else [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
    ):
        args = (size, max(3, plan.rounds // 2), True, plan.quick)
        two = plan.job(parts.latency, *args, cores=cores)[0]
        one = plan.job(parts.latency, *args, cores=cores[:1])[0]
        for slot in ("ours", "base"):
            alone, shared = (summary(s[slot], 1e6) for s in (two, one))
            target = at_most(shared["median"] / alone["median"], ONE_CORE_FACTOR)
            if slot == "base":
                target = {"ratio": target["ratio"]}
            name = f"{size_name(size)}: {plan.backends[slot]}, one core against two"
            values = (shared["median"], alone["median"])
            yield Figure("one core", name, "us", *values, **target, details={"one": shared})


PARTS: dict[str, Callable[[Plan], Iterator[Figure]]] = {
    "latency": latency,
    "still": latency_still,
    "inflight": inflight,
    "rate": rate,
    "blocks": blocks,
    "cpu": cpu,
    "idle": idle,
    "init": init,
    "onecore": one_core,
}


def run_parts(plan: Plan, names: list[str]) -> tuple[list[Figure], list[str]]:
    """Run the parts, printing each figure once known; a failing part doesn't stop the rest."""
    figures: list[Figure] = []
    errors: list[str] = []
    neighbours = Neighbours()
    for name in progress.shown(names):
        try:
            for figure in PARTS[name](plan):
                figure.others = neighbours.share()
                figures.append(figure)
                print(report.line(figure), flush=True)
        except (PayloadError, JobError) as error:
            kind = "wrong data" if isinstance(error, PayloadError) else "failed"
            errors.append(f"{name}: {kind}: {error}")
            print(errors[-1], flush=True)
    return figures, errors


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--pin", action="store_true", help="each rank on a core of its own")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part (repeatable)")
    parser.add_argument("--out", default="p2p", help="name of the JSON file in benchmarks/results")
    parser.add_argument("--ours", default="dlslime", help="the backend to judge")
    parser.add_argument("--base", default="gloo", help="the backend to compare with")
    return parser.parse_args()


def main() -> int:
    """Run the parts asked for and report the figures."""
    asked = arguments()
    about = report.environment()
    for key, value in about.items():
        print(f"{key:14s} {value}")
    with tempfile.TemporaryDirectory() as folder:
        backends = {"base": asked.base, "ours": asked.ours}
        plan = Plan(backends, asked.quick, asked.pin, limit.build(Path(folder)))
        if asked.ours == "dlslime":
            try:
                about["route"] = plan.job(parts.explain)[0]
            except JobError as error:
                print(f"cannot start: {error}")
                return 1
            print(f"{'route':14s} {about['route']['text']}")
        print()
        figures, errors = run_parts(plan, asked.only or list(PARTS))
    base = asked.base if asked.base != asked.ours else f"{asked.base} (again)"
    print("\n" + report.table(figures, asked.ours, base))
    short = sum(figure.ok is False for figure in figures)
    judged = sum(figure.ok is not None for figure in figures)
    print(f"\n{judged - short} of {judged} targets reached, {len(errors)} errors")
    noisy = sum(figure.others > QUIET_SHARE for figure in figures)
    if noisy:
        print(f"{noisy} figures were taken while other programs used more than 10% of the machine")
    out = report.HERE / "results" / Path(asked.out).with_suffix(".json").name
    report.save(out, about, figures, errors)
    print(f"written to benchmarks/results/{out.name}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
