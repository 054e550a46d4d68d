"""Costs of messages and transfers between two ranks on GPUs, against copies of equal shape.

    python benchmarks/gpu/figures/figures.py bandwidth|latency|pages|mappings|profile [VARIANT]

The ways take turns in every round, and move on through more memory than caches hold. Times are
fitted as a + b n: the cost of a message, and of a byte. On one GPU shared by two contexts, neither
a ratio at a size nor the chip's own rate predicts an NVLink. The receiver leaves each figure as
soon as known.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "python"))

import torch
import torch.distributed as dist

import dlslime_backend
import gpus
from gpu.figures import fit, traffic
from gpu.figures.traffic import MIB, PAGE, REAL, SCALE
from gpu.runner.findings import Findings
from measuring.harness import Rank, run_job
from measuring.report import size_name, summary

LINK = 450e9  # bytes per second of an NVLink of an H100 in one direction
ROUNDS = 5
SIZES = [128 << 10, 512 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
PAGES = [64, 512, 2048, 8192]
ALLOCATIONS = [16, 64, 256]
SMALL = [8, 1 << 10, 8 << 10, 64 << 10, MIB]
EXCHANGES = 1000  # watched by the profiler
DEADLINE_S = 300  # the step's own limit is shorter

Ways = dict[str, Callable[[], float]]


def turns(me: Rank, ways: Ways) -> dict[str, list[float]]:
    """Return samples of every way in seconds, taken in turns; the first round warms up."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, once in ways.items():
            me.barrier()
            value = once()
            if number > 0:
                samples[name].append(value)
    return samples


class Report:
    """The receiver's results: figures in microseconds, and fits as answers."""

    def __init__(self, me: Rank, part: str, variant: str) -> None:
        self._findings = Findings(f"fit.{part}.{variant}.") if me.rank == 1 else None
        self._part, self._variant = part, variant

    def figure(
        self, name: str, samples: dict[str, list[float]], count: int, base: str, target: str = ""
    ) -> None:
        """Leave the time of a message (or batch) of each way, and ours against `base`'s."""
        if self._findings is None:
            return
        times = {way: median(values) / count * 1e6 for way, values in samples.items()}
        against = times.get(base)
        self._findings.figure(
            part=self._part,
            variant=self._variant,
            name=name,
            unit="us",
            value=times["ours"],
            baseline=against,
            ratio=against / times["ours"] if against else None,
            target=target,
            ok=None,
            details={way: summary(values, 1e6 / count) for way, values in samples.items()},
        )
        print(f"{name}: " + ", ".join(f"{way} {time:.4g} us" for way, time in times.items()))

    def fits(self, points: dict[int, dict[str, float]], of: str) -> None:
        """Leave a and b of each way, from seconds by size (or by the number of pages)."""
        if self._findings is None:
            return
        measured = set.intersection(*(set(times) for times in points.values()))
        for way in sorted(measured):
            line = fit.line({size: times[way] for size, times in points.items()})
            values = {"a_us": line.fixed * 1e6, "worst_residual": line.worst}
            if of == "bytes":
                values["gb_per_s"] = 1 / line.each / 1e9
                # Back to back the larger of two times counts: the cost of a message, and of its
                # bytes.
                at_link = MIB / LINK
                values["share_of_450_gb_per_s_at_1_mib"] = at_link / max(at_link, line.fixed)
            else:
                values[f"ns_per_{of}"] = line.each * 1e9
            rounded = {f"{way}.{key}": float(f"{value:.4g}") for key, value in values.items()}
            self._findings.answer(**rounded)

    def answer(self, **values: Any) -> None:
        """Leave answers."""
        if self._findings is not None:
            self._findings.answer(**values)


def bandwidth(me: Rank, variant: str) -> None:
    """Measure messages of growing sizes, back to back."""
    report = Report(me, "bandwidth", variant)
    points: dict[int, dict[str, float]] = {}
    for whole in SIZES:
        size = whole // SCALE
        # Enough for a sample of milliseconds: ours contains the ranks' meeting.
        count = max(64, min(256, 256 * MIB // whole)) if REAL else max(4, 256 * MIB // whole // 16)
        stream = traffic.Messages(me, size, count)
        ways: Ways = {"copy": stream.copies}
        by_ipc = stream.ipc_copies() if REAL else None
        if by_ipc is not None:
            ways["ipc"] = by_ipc
        for slot, group in me.groups.items():
            ways[slot] = lambda g=group, s=stream: s.messages(g)  # type: ignore[misc]
        samples = turns(me, ways)
        stream.check()
        report.figure(size_name(size), samples, count, "ipc" if by_ipc else "copy")
        points[size] = {way: median(values) / count for way, values in samples.items()}
    report.fits(points, "bytes")
    counted = dlslime_backend.stats(me.groups["ours"])["peers"][1 - me.rank]
    report.answer(route=counted["route"], cuda_ipc_messages=counted["cuda_ipc_messages"])


def latency(me: Rank, variant: str) -> None:
    """Measure the way from stream to stream, and the host's part of isend() and wait()."""
    report = Report(me, "latency", variant)
    for size in SMALL:
        count = 100 if REAL else 8  # two contexts on one GPU may take milliseconds a turn
        ways: Ways = {
            slot: lambda g=group, s=size, n=count: traffic.ping_pong(me, g, s, n)  # type: ignore[misc]
            for slot, group in me.groups.items()
        }
        target = "< 12 us" if size <= 8 << 10 else ""
        report.figure(f"one way {size_name(size)}", turns(me, ways), count, "nccl", target)
    times = [traffic.host_times(me, me.groups["ours"], 8192, 200 // SCALE) for _ in range(ROUNDS)]
    for number, name in enumerate(("isend", "wait")):
        # The sender waits for nothing; the receiver waits for each message.
        both = me.share([entry[number] for entry in times])
        report.figure(f"host in {name}(), sender", {"ours": both[0]}, 1, "", "< 8 us")
        report.figure(f"host in {name}(), receiver", {"ours": both[1]}, 1, "", "< 8 us")


def pages(me: Rank, variant: str) -> None:
    """Measure batches of reads of 16 KiB that can't be merged."""
    report = Report(me, "pages", variant)
    points: dict[int, dict[str, float]] = {}
    for whole in PAGES:
        count = max(2, whole // SCALE)
        cache = traffic.Cache(me, me.groups["ours"], count)
        ways: Ways = {"copy": cache.copy, "gather": cache.gather, "ours": cache.read}
        samples = turns(me, ways)
        cache.check()
        report.figure(f"{count} pages of {PAGE >> 10} KiB", samples, 1, "gather")
        points[count] = {way: median(values) for way, values in samples.items()}
        cache.close()
    report.fits(points, "page")


def mappings(me: Rank, variant: str) -> None:
    """Measure the extra cost of the first use of a peer's allocation."""
    report = Report(me, "mappings", variant)
    for whole in ALLOCATIONS:
        count = whole if REAL else max(2, whole // SCALE)
        allocations = traffic.Allocations(me, me.groups["ours"], count)
        first = allocations.read()
        later = [allocations.read() for _ in range(ROUNDS)]
        allocations.check()
        samples = {"ours": [first], "later": later}
        report.figure(f"an allocation of {count}, at first", samples, count, "later")
        allocations.close()


def profile(me: Rank, variant: str) -> None:
    """Count kernels, copies and waits of the host in a loop of exchanges, as CUPTI sees them.

    CUPTI waits for the GPU itself: a few waits are CUPTI's own.
    """
    seen = me.share(traffic.watched(me, me.groups["ours"], EXCHANGES))
    if me.rank == 1:
        Findings("profile.").answer(exchanges=EXCHANGES, sender=seen[0], receiver=seen[1])


GROUPS = {
    "bandwidth": bandwidth,
    "latency": latency,
    "pages": pages,
    "mappings": mappings,
    "profile": profile,
}


def work(me: Rank, name: str, variant: str) -> None:
    """Measure a group of figures, in a rank."""
    gpus.use(me.rank)
    GROUPS[name](me, variant)


def main() -> None:
    """Run a group in two ranks."""
    name, variant = sys.argv[1], (sys.argv[2:] or ["plain"])[0]
    backends = {"ours": "dlslime"}
    if REAL and torch.cuda.device_count() > 1 and dist.is_nccl_available():
        backends["nccl"] = "nccl"
    cores = sorted(os.sched_getaffinity(0))
    run_job(work, (name, variant), backends=backends, cores=cores, deadline=DEADLINE_S)
    print(json.dumps({"group": name, "variant": variant, "scale": SCALE}))


if __name__ == "__main__":
    main()
