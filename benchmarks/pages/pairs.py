"""Two ranks, of which one moves bytes: the bytes' places, checks, and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from measuring.harness import Payload, PayloadError
from measuring.transfer_libraries import Piece
from pages.base import Start
from pages.meeting import Meeting
from pages.sampling import (
    Plan,
    Progress,
    Samples,
    cpu_per_gb,
    cpu_seconds,
    measure,
    megabytes,
    percentile,
    thinned,
)

PAGE = 4096
STEP = 7  # between the contents of two places


class Memory:
    """The memory of an end, with places for the pieces of a batch.

    Places are apart by a page or more, so that no engine can move two places at once. A batch that
    needs more places than fit uses places again, in turn.
    """

    def __init__(self, largest: int, budget: int, device: torch.device) -> None:
        size = max(budget, self._stride(largest))
        self.tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        self._places: list[Piece] = []
        self._payload = Payload(1)

    @staticmethod
    def _stride(size: int) -> int:
        return -(-size // PAGE) * PAGE + PAGE

    def lay_out(self, size: int, batch: int) -> list[Piece]:
        """Return the pieces of a batch of messages of `size` bytes."""
        room = self.tensor.numel() // self._stride(size)
        self._places = [(n * self._stride(size), size) for n in range(min(batch, room))]
        self._payload = Payload(size)
        return [self._places[n % len(self._places)] for n in range(batch)]

    def fill(self, number: int) -> None:
        """Write contents that differ by number, and from place to place."""
        for place, view in self._views():
            made = torch.empty(view.numel(), dtype=torch.uint8)
            self._payload.fill(made, number + STEP * place)
            view.copy_(made)
        self.settle()

    def clear(self) -> None:
        """Zero the contents of all places."""
        for _, view in self._views():
            view.zero_()
        self.settle()

    def check(self, number: int, what: str) -> None:
        """Check every byte of every place, and zero all places.

        Raises:
            PayloadError: a byte differs from the bytes written by the other end's `fill`.
        """
        self.settle()
        for place, view in self._views():
            found = view.cpu() if view.is_cuda else view
            self._payload.check(found, number + STEP * place, f"{what}, place {place}")
            view.zero_()
        self.settle()

    def settle(self) -> None:
        """Wait for the GPU, if the memory is a GPU's."""
        if self.tensor.is_cuda:
            torch.cuda.synchronize(self.tensor.device)

    def _views(self) -> list[tuple[int, torch.Tensor]]:
        return [(n, self.tensor[at : at + size]) for n, (at, size) in enumerate(self._places)]


@dataclass
class Work:
    """The work of a pair.

    Attributes:
        write: whether the initiator writes; else the initiator reads.
        batch: messages in a batch; `concurrency` batches are under way at a time.
        every: whether the bytes of each iteration are checked.
    """

    write: bool
    batch: int
    concurrency: int
    plan: Plan
    every: bool = False


@dataclass
class Row:
    """A line of a table, unrounded; times in milliseconds, of one batch.

    Attributes:
        nbytes: moved by one channel during the measurement.
        bandwidth: 10^6 bytes per second, summed over the channels.
        cpu: processor seconds for 10^9 bytes, of both ends of all channels.
        error: the fault of the bytes, or empty.
    """

    engine: str
    channels: int
    size: int
    batch: int
    concurrency: int
    nbytes: int = 0
    latency: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    bandwidth: float = 0.0
    cpu: float = 0.0
    route: str = ""
    error: str = ""
    samples: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def verified(self) -> str:
        """Return the word in the table."""
        return "WRONG" if self.error else "yes"

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {**asdict(self), "verified": not self.error}


def iteration(starts: list[Start], memory: Memory) -> Callable[[], None]:
    """Return a function that starts all batches, and waits for each."""

    def once() -> None:
        for wait in [start() for start in starts]:
            wait()
        memory.settle()

    return once


class Pair:
    """An end of a pair; all ranks of the meeting call `run` with equal arguments.

    Args:
        initiates: whether the calling end reads and writes.
        engine: as made by `engines.load`.
    """

    def __init__(self, meeting: Meeting, initiates: bool, memory: Memory, engine: Any) -> None:
        self._meeting = meeting
        self._initiates = initiates
        self._memory = memory
        self._engine = engine
        self._deliver = getattr(engine, "deliver", lambda: None)
        self._number = 0  # of contents

    def run(self, size: int, work: Work, progress: Progress | None = None) -> dict[str, Any]:
        """Measure a size; return the rank's part of the results."""
        pieces = self._memory.lay_out(size, work.batch)
        starts = [self._engine.prepare(pieces, work.write) for _ in range(work.concurrency)]
        once = iteration(starts, self._memory)
        self._ready(work)
        acts = self._initiates or self._engine.serves
        if acts:
            measure(once, Plan(work.plan.warmup))
            self._deliver()
        self._meeting.barrier()
        self._ready(work)  # so that bytes moved by the warm-up can't pass for later bytes
        if work.every:
            return self._each(once, size, work, progress)
        cpu, begin = cpu_seconds(), time.perf_counter()
        samples = Samples()
        if acts:
            samples = measure(once, work.plan, progress)
            self._deliver()
        self._meeting.barrier()
        if not acts:  # the cost of its memory for a passive end
            samples.cpu = cpu_seconds() - cpu
        return self._told(samples, self._wrong(size, work), time.perf_counter() - begin)

    def _each(
        self, once: Callable[[], None], size: int, work: Work, progress: Progress | None
    ) -> dict[str, Any]:
        """Run every iteration separately, with a check of its bytes."""
        samples, error, begin = Samples(), "", time.perf_counter()
        for number in range(work.plan.iterations):
            cpu = cpu_seconds()
            if self._initiates or self._engine.serves:
                samples.times += measure(once, Plan(1)).times
                self._deliver()
            self._meeting.barrier()
            samples.cpu += cpu_seconds() - cpu
            error = error or self._wrong(size, work)
            self._meeting.barrier()
            self._ready(work)
            if progress is not None:
                progress((number + 1) / work.plan.iterations)
        return self._told(samples, error, time.perf_counter() - begin)

    def _sends(self, work: Work) -> bool:
        return self._initiates == work.write

    def _ready(self, work: Work) -> None:
        """Fill the memory at the end with the bytes, and clear the memory at the other end."""
        self._number += 1
        if self._sends(work):
            self._memory.fill(self._number)
        else:
            self._memory.clear()
        self._meeting.barrier()

    def _wrong(self, size: int, work: Work) -> str:
        if self._sends(work):
            return ""
        try:
            self._memory.check(self._number, f"{size} bytes")
        except PayloadError as error:
            return str(error)
        return ""

    def _told(self, samples: Samples, error: str, elapsed: float) -> dict[str, Any]:
        return {
            "times": thinned(samples.times) if self._initiates else [],
            "count": len(samples.times),
            "seconds": samples.elapsed,
            "cpu": samples.cpu,
            "error": error,
            "elapsed": elapsed,
            "initiates": self._initiates,
        }


def summed(row: Row, told: list[dict[str, Any]]) -> Row:
    """Fill in a row from the parts of all ranks."""
    active = [one for one in told if one["initiates"]]
    message = row.size * row.batch * row.concurrency  # of an iteration
    row.nbytes = message * active[0]["count"]
    every = [one["seconds"] / one["count"] for one in active]
    row.latency = sum(every) / len(every) / row.concurrency * 1e3
    times = [taken for one in active for taken in one["times"]]
    for name, per_cent in (("p50", 50), ("p90", 90), ("p99", 99)):
        setattr(row, name, percentile(times, per_cent) / row.concurrency * 1e3)
    row.bandwidth = sum(megabytes(message * one["count"], one["seconds"]) for one in active)
    total = sum(message * one["count"] for one in active)
    row.cpu = cpu_per_gb(sum(one["cpu"] for one in told), total)
    row.samples = sum(one["count"] for one in active)
    row.error = next((one["error"] for one in told if one["error"]), "")
    return row
