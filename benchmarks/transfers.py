r"""One-sided reads between two processes of one host: dlslime, NIXL and Mooncake in one run.

    pip install --no-deps --target /tmp/wheels nixl nixl-cu12 mooncake-transfer-engine-non-cuda
    python benchmarks/transfers.py --wheels /tmp/wheels --json out.json

The libraries' wheels are kept apart from the environment, since wheels bring libraries of their
own. A library that can't be loaded is left out, with a message. Each library has two processes of
its own, and rounds take turns: the processes of other libraries are stopped meanwhile (SIGSTOP), or
polling processes would take the processors from the library under measurement. The bytes read are
checked after each round. The exit status says whether all bytes were right.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from measuring import report
from measuring.report import Figure, at_least, at_most, summary
from measuring.transfer_libraries import LIBRARIES, PAGE, Go, Piece

PAGES = 2048
LARGE = 128 << 20
SMALL = 4096
SMALL_READS = 2000
SUBMITTED = 100_000
MEMORY = 2 * LARGE
CHUNK = 1 << 20  # made, and checked, at a time
ROUNDS = 9


def contents(offset: int, size: int) -> torch.Tensor:
    """Return the other process's bytes at a place: they differ from page to page, and within."""
    at = torch.arange(offset, offset + size)
    return ((at + at // PAGE * 7 + at // 251) % 251).to(torch.uint8)


def _load(name: str, memory: torch.Tensor, pipe: Connection) -> tuple[Any, str]:
    """Return the library, or the reason against using the library, at both processes alike."""
    exchanged = False

    def exchange(value: Any) -> Any:
        nonlocal exchanged
        exchanged = True
        pipe.send(value)
        return pipe.recv()

    library, problem = None, ""
    try:
        library = LIBRARIES[name](memory, exchange)
    except Exception as error:  # noqa: BLE001 - of a library used only for comparison
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if not exchanged:
            exchange(None)
    theirs = exchange(problem)
    return library, problem or theirs


def _target(name: str, peer: Connection, wheels: str) -> None:
    """Run the process with the memory to read."""
    sys.path.append(wheels)
    memory = torch.cat([contents(at, CHUNK) for at in range(0, MEMORY, CHUNK)])
    kept = _load(name, memory, peer)
    peer.recv()
    del kept
    os._exit(0)  # some of the libraries crash at their unloading


class _Reader:
    """The process that reads, and answers the measuring process."""

    def __init__(self, library: Any, memory: torch.Tensor) -> None:
        self._library = library
        self._memory = memory
        self._pieces: list[Piece] = []
        self._go: Go = lambda: None

    def prepare(self, pieces: list[Piece]) -> None:
        self._pieces = pieces
        self._go = self._library.prepare(pieces)

    def read(self, count: int) -> float:
        """Return the median of `count` reads, in microseconds."""
        for offset, size in self._pieces:
            self._memory[offset : offset + size] = 0
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            self._go()
            taken.append((time.perf_counter() - start) * 1e6)
        self._check()
        return median(taken)

    def _check(self) -> None:
        for offset, size in self._pieces:
            for at in range(offset, offset + size, CHUNK):
                chunk = self._memory[at : min(at + CHUNK, offset + size)]
                if not torch.equal(chunk, contents(at, chunk.numel())):
                    raise AssertionError(f"wrong bytes were read at {at}")

    def submit(self, count: int) -> float:
        """Return the milliseconds for posting `count` pieces."""
        return float(self._library.submit(count)) * 1e3

    def idle(self) -> float:
        """Return the per cent of a processor used by the idle process."""
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        time.sleep(3)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return 100 * used / (time.perf_counter() - start)


def _read(name: str, peer: Connection, control: Connection, wheels: str) -> None:
    sys.path.append(wheels)
    memory = torch.zeros(MEMORY, dtype=torch.uint8)
    library, problem = _load(name, memory, peer)
    control.send(problem)
    reader = _Reader(library, memory)
    while (asked := control.recv()) is not None:
        what, *arguments = asked
        control.send(getattr(reader, what)(*arguments))
    peer.send("over")
    os._exit(0)


class Pair:
    """A library in two processes."""

    def __init__(self, name: str, wheels: str) -> None:
        context = get_context("spawn")
        here, there = context.Pipe()
        self._control, control = context.Pipe()
        self._processes = [
            context.Process(target=_target, args=(name, there, wheels)),
            context.Process(target=_read, args=(name, here, control, wheels)),
        ]
        for process in self._processes:
            process.start()
        for end in (here, there, control):
            end.close()
        self.problem: str = self._control.recv()
        self.stop()

    def stop(self) -> None:
        """Stop the library's processes until the next question."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def ask(self, *asked: Any) -> Any:
        """Return the reader's answer, with all other libraries stopped."""
        self._signal(signal.SIGCONT)
        self._control.send(asked)
        answer = self._control.recv()
        self.stop()
        return answer

    def end(self) -> None:
        """End both processes."""
        self._signal(signal.SIGCONT)
        self._control.send(None)
        for process in self._processes:
            process.join(30)
            process.kill()


class Bench:
    """The rounds of all libraries."""

    def __init__(self, pairs: dict[str, Pair], rounds: int) -> None:
        self._pairs = pairs
        self._rounds = rounds

    def times(self, pieces: list[Piece], count: int) -> dict[str, list[float]]:
        """Return the microseconds a read: medians of rounds, by library."""
        for pair in self._pairs.values():
            pair.ask("prepare", pieces)
        samples: dict[str, list[float]] = {name: [] for name in self._pairs}
        order = list(self._pairs)
        for number in range(self._rounds + 1):
            for name in order:
                taken = self._pairs[name].ask("read", count)
                if number > 0:  # the first warms up
                    samples[name].append(taken)
            order = order[1:] + order[:1]
        return samples

    def against(self, part: str, name: str, factor: float, **what: Any) -> list[Figure]:
        """Return the figures of a kind of read, against each other library."""
        samples = {library: summary(taken) for library, taken in self.times(**what).items()}
        ours = samples["ours"]["median"]
        figures = []
        for library, entry in samples.items():
            if library != "ours":
                theirs = entry["median"]
                target = at_least(theirs / ours, factor)
                label = f"{name}, {library}"
                figures.append(Figure(part, label, "us", ours, theirs, **target, details=samples))
        return figures

    def submitting(self) -> Figure:
        """Measure the posting of a huge batch."""
        pair, limit = self._pairs["ours"], 10.0
        posted = summary([pair.ask("submit", SUBMITTED) for _ in range(self._rounds)])
        target = at_most(posted["median"] / limit, 1.0) | {"target": "<= 10 ms"}
        name = f"{SUBMITTED:,} pieces of 2 KiB"
        return Figure("submit", name, "ms", posted["median"], limit, **target, details=posted)

    def idling(self) -> Figure:
        """Measure the idle process after reads."""
        shares = {name: pair.ask("idle") for name, pair in self._pairs.items()}
        target = at_most(shares["ours"] / 0.5, 1.0) | {"target": "<= 0.5%"}
        return Figure("idle", "ours", "% cpu", shares["ours"], None, **target, details=shares)


def _figures(bench: Bench) -> list[Figure]:
    pages = [(int(page) * PAGE, PAGE) for page in torch.randperm(MEMORY // PAGE)[:PAGES]]
    figures = bench.against("small", "4 KiB", 1.0, pieces=[(0, SMALL)], count=SMALL_READS)
    figures += bench.against("pages", "2,048 x 16 KiB", 3.0, pieces=pages, count=5)
    figures += bench.against("large", "128 MiB", 1.5, pieces=[(0, LARGE)], count=5)
    return [*figures, bench.submitting(), bench.idling()]


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", default="", help="folder with the other libraries")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, default=report.HERE / "results" / "transfers.json")
    options = parser.parse_args()
    pairs: dict[str, Pair] = {}
    missing: dict[str, str] = {}
    for name in LIBRARIES:
        pair = Pair(name, options.wheels)
        if pair.problem:
            missing[name] = pair.problem
            print(f"without {name}: {pair.problem}")
            pair.end()
        else:
            pairs[name] = pair
    if "ours" in missing:
        raise RuntimeError(missing["ours"])
    figures = _figures(Bench(pairs, options.rounds))
    for figure in figures:
        print(report.line(figure))
    report.save(options.json, report.environment() | {"missing": missing}, figures, [])
    for pair in pairs.values():
        pair.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
