r"""One-sided reads between two hosts: dlslime, plain libibverbs, the original DLSlime in one run.

    pip install --no-deps --target DIR dlslime==0.1.23
    torchrun --nnodes 2 --nproc-per-node 1 --node-rank R --master-addr A --master-port 29500 \
        benchmarks/rdma_reads.py --wheel DIR --json out.json

or on one machine, in the lab, with nodes that have a /tmp of their own (DIR must be elsewhere):

    tests/lab/lab.py --out /tmp/lab -- sh -c '.venv/bin/torchrun --nnodes 2 --nproc-per-node 1 \
        --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 29500 \
        benchmarks/rdma_reads.py --wheel DIR --json $LAB_OUT/reads.json'

Rank 1 reads from rank 0, whose process sleeps meanwhile. Rounds take turns; in rounds of other
programs the wheel's processes are stopped (see measuring/wheel.py). With few processors the wheel
is so slow that the wheel reads for only a second or two in a round. The bytes read are checked
after each round. The exit status is 0 for any times, 1 if wrong data arrived.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import dlslime_backend as dlslime
from measuring import report
from measuring.report import Figure, at_least, size_name, summary
from measuring.wheel import Pieces, Wheel, contents
from rdma import Limit, retries

MEMORY = 16 << 20
PIECE = 64 << 10
# As many pieces as the C program's: every other piece, so that no two can be read at once.
BATCH = [(2 * number * PIECE, PIECE) for number in range(64)]
BATCHES = 5  # in a round
BATCH_SHARE = 0.9  # of the C program's bandwidth
SINGLES = {2 << 10: 41, 16 << 10: 41, 128 << 10: 15, 1 << 20: 5, 16 << 20: 3}  # reads in a round
WHEEL_SECONDS = 1.5  # in a round

WHEEL = "dlslime 0.1.23"
FAILED = "failed"

Runs = dict[str, Callable[[], list[float]]]  # work of each program in a round
Samples = dict[str, dict[str, float]]


class Bench:
    """A rank of two."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        dist.init_process_group("dlslime")
        self.rank = dist.get_rank()
        self._rounds = options.rounds
        self._limit = Limit(self.rank, folder)
        self._store = dist.PrefixStore("reads", dist.distributed_c10d._get_default_store())
        self._step = 0
        self._retries: Counter[str] = Counter()  # at the calling end, by program
        self._there = torch.frombuffer(bytearray(contents(MEMORY)), dtype=torch.uint8)
        self._memory = torch.zeros_like(self._there) if self.rank == 1 else self._there
        self._region = dlslime.register(self._memory, "memory")
        exported = self.exchange(self._region.export().hex())
        self._remote = dlslime.import_region(bytes.fromhex(exported))
        self.peer = dlslime.peer(1 - self.rank)
        self.wheel: Wheel | None = None
        if options.wheel:
            self.wheel = Wheel(options.wheel, MEMORY, self.rank == 1, self.exchange)

    def exchange(self, mine: str) -> str:
        """Meet the other rank at the store, and return its text."""
        self._step += 1
        self._store.set(f"{self._step}/{self.rank}", mine)
        theirs = str(self._store.get(f"{self._step}/{1 - self.rank}").decode())
        if theirs == FAILED:
            raise RuntimeError("the other rank has failed")
        return theirs

    def fail(self) -> None:
        """Let the other rank fail, too, at its next exchange."""
        self._store.set(f"{self._step + 1}/{self.rank}", FAILED)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.wheel:
            self.wheel.close()
        dist.destroy_process_group()

    def share(self, values: list[float]) -> list[float]:
        """Return the measurements of either rank."""
        theirs = self.exchange(" ".join(map(str, values)))
        return values or [float(word) for word in theirs.split()]

    def read(self, pieces: Pieces, count: int) -> list[float]:
        """Return the microseconds of each of dlslime's reads of all pieces, at rank 1."""
        if self.rank == 0:
            return []
        expected = torch.zeros_like(self._there)
        for offset, size in pieces:
            expected[offset : offset + size] = self._there[offset : offset + size]
        self._memory.zero_()
        batch = [(offset, offset, size) for offset, size in pieces]
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.peer.read(self._region, self._remote, batch).wait()
            times.append((time.perf_counter() - start) * 1e6)
        assert torch.equal(self._memory, expected), "dlslime has read wrong data"
        return times

    def _c_program(self, mode: str, size: int, count: int) -> list[float]:
        return self._limit.run(mode, size, count)[:1]  # the median; the second is the least

    def _rounds_of(self, runs: Runs) -> dict[str, list[float]]:
        """Take turns; return each program's medians of rounds."""
        samples: dict[str, list[float]] = {name: [] for name in runs}
        order = list(runs)
        for number in range(self._rounds + 1):
            for name in order:
                self.share([0.0])
                before = retries()
                values = self.share(runs[name]())
                self._retries[name] += retries() - before
                if number > 0 and values:  # the first warms up
                    samples[name].append(median(values))
            order = order[1:] + order[:1]
        return {name: values for name, values in samples.items() if values}

    def retries(self) -> dict[str, int]:
        """Return how often the NICs of both ends have sent again, by program."""
        theirs = json.loads(self.exchange(json.dumps(self._retries)))
        return {name: self._retries[name] + theirs[name] for name in theirs}

    def measure(self, modes: list[str], pieces: Pieces, count: int) -> Samples:
        """Return `report.summary` of each program's rounds; `modes` are the C program's."""
        size = pieces[0][1]
        runs: Runs = {f"C: {mode}": partial(self._c_program, mode, size, count) for mode in modes}
        runs["ours"] = lambda: self.read(pieces, count)
        if self.wheel:
            wheel = self.wheel
            runs[WHEEL] = lambda: wheel.run(pieces, count, WHEEL_SECONDS)
        return {name: summary(values) for name, values in self._rounds_of(runs).items()}


def _figures(part: str, name: str, samples: Samples, share: float | None) -> list[Figure]:
    """Return ours against each other program; `share` is the target share of the C program's."""
    ours = samples["ours"]["median"]
    figures = []
    for other, entry in samples.items():
        if other != "ours":
            factor = 1.0 if other == WHEEL else share
            theirs = entry["median"]
            target = at_least(theirs / ours, factor)
            label = f"{name}, {other}"
            figures.append(Figure(part, label, "us", ours, theirs, **target, details=samples))
    return figures


def _all_figures(bench: Bench) -> Iterator[Figure]:
    samples = bench.measure(["batch", "asleep"], BATCH, BATCHES)
    yield from _figures("batch", "64 x 64 KiB", samples, BATCH_SHARE)
    for size, count in SINGLES.items():
        samples = bench.measure(["read"], [(0, size)], count)
        yield from _figures("single", size_name(size), samples, None)


def _options() -> argparse.Namespace:
    parser = report.lab_parser(__doc__, rounds=7)
    parser.add_argument("--wheel", default="", help="folder with the original DLSlime's wheel")
    parser.add_argument("--note", default="", help="what is to be known of the machine, for --json")
    return parser.parse_args()


def _measure(bench: Bench, options: argparse.Namespace) -> None:
    about: dict[str, Any] = {"route": bench.peer.route()}
    figures = []
    for figure in _all_figures(bench):
        figures.append(figure)
        if bench.rank == 0:
            print(report.line(figure), flush=True)
    about["retries"] = bench.retries()
    if bench.wheel and bench.wheel.missing:
        about["without_wheel"] = bench.wheel.missing
        print(f"without the wheel: it {bench.wheel.missing}")
    if options.note:
        about["note"] = options.note
    if bench.rank == 0:
        report.save(options.json, report.environment() | about, figures, [])
        print(f"written to {options.json}")


def main() -> int:
    """Measure, print and write."""
    options = _options()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        try:
            _measure(bench, options)
        except Exception:
            bench.fail()
            raise
        finally:
            bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
