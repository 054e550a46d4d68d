"""Times of iterations after a warm-up, their percentiles, and the iterations' processor time."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

BILLION = 1e9  # bytes, the pages' GB

Progress = Callable[[float], None]  # takes the share of work done, 0 to 1


@dataclass
class Samples:
    """Measurements of a process.

    Attributes:
        times: seconds of each iteration.
        cpu: processor seconds of the process, all its threads, in the iterations.
    """

    times: list[float] = field(default_factory=list)
    cpu: float = 0.0

    @property
    def elapsed(self) -> float:
        """Return the seconds of all iterations."""
        return sum(self.times)


@dataclass
class Plan:
    """The number of iterations.

    Attributes:
        iterations: number of measured iterations; ignored with a duration.
        warmup: iterations before the measured ones, which do not count.
        duration: seconds after which no iteration begins; 0: `iterations` decides instead.
    """

    iterations: int
    warmup: int = 0
    duration: float = 0.0


def cpu_seconds() -> float:
    """Return the process's processor seconds so far, in user and kernel mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(
    once: Callable[[], None],
    plan: Plan,
    progress: Progress | None = None,
    after: Callable[[], None] | None = None,
) -> Samples:
    """Time `once` as often as the plan says; `after` follows each iteration, and is not timed."""
    samples = Samples()
    begin = time.perf_counter()
    while not _over(samples, plan, begin):
        cpu = cpu_seconds()
        start = time.perf_counter()
        once()
        samples.times.append(time.perf_counter() - start)
        samples.cpu += cpu_seconds() - cpu
        if after is not None:
            after()
        if progress is not None:
            progress(_share(samples, plan, begin))
    return samples


def _over(samples: Samples, plan: Plan, begin: float) -> bool:
    if plan.duration:
        return bool(samples.times) and time.perf_counter() - begin >= plan.duration
    return len(samples.times) >= plan.iterations


def _share(samples: Samples, plan: Plan, begin: float) -> float:
    if plan.duration:
        return min(1.0, (time.perf_counter() - begin) / plan.duration)
    return len(samples.times) / plan.iterations


def percentile(values: Sequence[float], per_cent: float) -> float:
    """Return the sample that `per_cent` of the samples do not exceed, by the nearest rank."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * per_cent / 100)]


def thinned(times: Sequence[float], most: int = 10_000) -> list[float]:
    """Return the distribution in fewer samples, for other ranks."""
    ordered = sorted(times)
    return ordered if len(ordered) <= most else ordered[:: len(ordered) // most + 1]


def cpu_per_gb(seconds: float, nbytes: int) -> float:
    """Return the processor seconds for 10^9 bytes."""
    return seconds / (nbytes / BILLION)


def megabytes(nbytes: float, seconds: float) -> float:
    """Return 10^6 bytes per second."""
    return nbytes / seconds / 1e6
