r"""Point-to-point between two hosts: dlslime and Gloo against plain libibverbs, in one run.

    torchrun --nnodes 2 --nproc-per-node 1 --node-rank R --master-addr A --master-port 29500 \
        benchmarks/rdma.py --json out.json

or on one machine, in the lab:

    tests/lab/lab.py --pin --out /tmp/lab -- sh -c '.venv/bin/torchrun --nnodes 2 \
        --nproc-per-node 1 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 29500 \
        benchmarks/rdma.py --json $LAB_OUT/rdma.json'

Rounds alternate between the programs. If benchmarks/cpp/latency.cpp was built, and both hosts can
write to the folder of --json (as in the lab), the engine alone is measured, too. The exit status is
0 for any times, 1 if wrong data arrived.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from measuring import report
from measuring.report import Figure, at_least, at_most, size_name, summary

SOURCE = Path(__file__).parent / "limit" / "rdma_limit.c"
SMALL = 8
WINDOW = 16
# The share of the limit's bandwidth that has to be reached, by size.
SHARES = {64 << 10: 0.75, 1 << 20: 0.9, 16 << 20: 0.85}
COUNTS = {64 << 10: 128, 1 << 20: 32, 16 << 20: 1}
TRIPS = 400
SMALL_FACTOR = 1.3
PYTHON_US = 25.0  # allowed time of dist.send and dist.recv beyond the engine
MIDDLE = [1 << 10, 16 << 10, 64 << 10]  # sizes at which Gloo is to be beaten, beside SMALL
BATCH = 64  # small messages each way
# Of the NIC: packets sent again because no answer came in time, or out of order.
RETRIES = ["completer_retry_err", "out_of_seq_request", "rcvd_rnr_err"]


Runs = dict[str, Callable[[], list[float]]]  # work of each program in a round


def retries() -> int:
    """Return how often the node's NICs have sent again."""
    counters = Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/*")
    return sum(int(path.read_text(encoding="ascii")) for path in counters if path.name in RETRIES)


class Limit:
    """The C program, at both ends."""

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank = rank
        self._program = folder / "rdma_limit"
        command = ["cc", "-O2", "-std=gnu11", str(SOURCE), "-o", str(self._program), "-libverbs"]
        subprocess.run(command, check=True)

    def run(self, mode: str, size: int, count: int, pieces: int = 64) -> list[float]:
        """Return the median and the least, in microseconds, at the client's end."""
        server = [] if self._rank == 0 else [os.environ["MASTER_ADDR"]]
        command = [str(self._program), mode, f"{size}x{pieces}", str(count), *server]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [float(word) for word in done.stdout.split()[2:]]


class EngineAlone:
    """The engine without Python, as benchmarks/cpp/latency.cpp."""

    PROGRAM = Path(__file__).parents[1] / "build" / "cpp-plain" / "dlslime_latency"

    def __init__(self, rank: int, shared: Path) -> None:
        self._rank = rank
        self._shared = shared
        self._runs = 0

    def run(self, size: int, count: int) -> list[float]:
        """Return the median, in microseconds, at rank 1."""
        self._runs += 1
        folder = self._shared / f"latency{self._runs}"
        folder.mkdir(exist_ok=True)
        command = [str(self.PROGRAM), str(self._rank), str(folder), str(size), str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [float(word) for word in done.stdout.split()[2:3]]


class Bench:
    """A rank of two."""

    def __init__(self, rounds: int, folder: Path, shared: Path) -> None:
        dist.init_process_group("dlslime")
        self.rank = dist.get_rank()
        self.peer = 1 - self.rank
        self.rounds = rounds
        self.groups = {"ours": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
        self.limit = Limit(self.rank, folder)
        built = EngineAlone.PROGRAM.exists()
        self.engine = EngineAlone(self.rank, shared) if built else None
        self._store = dist.PrefixStore("bench", dist.distributed_c10d._get_default_store())
        self._step = 0
        self.retries: Counter[str] = Counter()  # at the calling end, by program

    def share(self, values: list[float]) -> list[float]:
        """Meet the other rank at the store, and return the values of either rank."""
        self._step += 1
        self._store.set(f"{self._step}/{self.rank}", " ".join(map(str, values)))
        theirs = self._store.get(f"{self._step}/{self.peer}").decode()
        return values or [float(word) for word in theirs.split()]

    def ping_pong(self, group: dist.ProcessGroup, size: int, trips: int) -> list[float]:
        """Return one-way times in microseconds; received bytes are checked once, at the end."""
        mine, other = (
            torch.full((size,), 1 + r, dtype=torch.uint8) for r in (self.rank, self.peer)
        )
        received = torch.zeros(size, dtype=torch.uint8)
        times = []
        for _ in range(trips):
            start = time.perf_counter()
            if self.rank == 1:
                dist.send(mine, self.peer, group)
                dist.recv(received, self.peer, group)
            else:
                dist.recv(received, self.peer, group)
                dist.send(mine, self.peer, group)
            times.append((time.perf_counter() - start) * 5e5)
        assert torch.equal(received, other), "wrong data arrived"
        return times if self.rank == 1 else []

    def stream(self, group: dist.ProcessGroup, size: int, count: int) -> list[float]:
        """Return the microseconds a message, WINDOW of them in flight, from rank 1 to rank 0."""
        data = torch.full((size,), 7, dtype=torch.uint8)
        buffers = [torch.zeros(size, dtype=torch.uint8) for _ in range(min(count, WINDOW))]
        sign = torch.zeros(1)
        self.share([0.0])  # fresh pages can cost the lab a second, at one end or the other
        start = time.perf_counter()
        pending: list[dist.Work] = []
        for i in range(count):
            if len(pending) == WINDOW:
                pending.pop(0).wait()
            if self.rank == 1:
                pending.append(dist.isend(data, self.peer, group))
            else:
                pending.append(dist.irecv(buffers[i % WINDOW], self.peer, group))
        for work in pending:
            work.wait()
        if self.rank == 1:
            dist.recv(sign, self.peer, group)
            return [(time.perf_counter() - start) * 1e6 / count]
        dist.send(sign, self.peer, group)
        assert all(torch.equal(buffer, data) for buffer in buffers), "wrong data arrived"
        return []

    def batches(self, group: dist.ProcessGroup, size: int, count: int) -> list[float]:
        """Return the microseconds for each batch of BATCH messages in each direction."""
        mine, other = (
            torch.full((size,), 1 + r, dtype=torch.uint8) for r in (self.rank, self.peer)
        )
        received = [torch.zeros(size, dtype=torch.uint8) for _ in range(BATCH)]
        ops = [dist.P2POp(dist.irecv, tensor, self.peer, group) for tensor in received]
        ops += [dist.P2POp(dist.isend, mine, self.peer, group) for _ in received]
        times = []
        for _ in range(count):
            start = time.perf_counter()
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            times.append((time.perf_counter() - start) * 1e6)
        assert all(torch.equal(tensor, other) for tensor in received), "wrong data arrived"
        return times if self.rank == 1 else []

    def rounds_of(self, runs: Runs) -> dict[str, list[float]]:
        """Alternate between the programs; return each program's medians of rounds."""
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(self.rounds + 1):
            for name, run in runs.items():
                self.share([0.0])
                before = retries()
                values = self.share(run())
                self.retries[name] += retries() - before
                if number > 0:  # the first warms up
                    samples[name].append(median(values))
        return samples


def _small(bench: Bench) -> list[Figure]:
    runs: Runs = {
        "limit": lambda: bench.limit.run("send", SMALL, TRIPS)[:1],
        "ours": lambda: bench.ping_pong(bench.groups["ours"], SMALL, TRIPS),
        "gloo": lambda: bench.ping_pong(bench.groups["gloo"], SMALL, TRIPS // 8),
    }
    if bench.engine:
        engine = bench.engine
        runs["engine"] = lambda: engine.run(SMALL, TRIPS)
    samples = bench.rounds_of(runs)
    least = {name: summary(values) for name, values in samples.items()}
    ours, limit, gloo = (least[name]["median"] for name in ("ours", "limit", "gloo"))
    target = at_most(ours / (SMALL_FACTOR * limit + PYTHON_US), 1.0)
    target["target"] = f"<= {SMALL_FACTOR} C + {PYTHON_US:g} us"
    figures = [
        Figure("latency", "8 B, C: send", "us", ours, limit, **target, details=least),
        Figure("latency", "8 B, Gloo", "us", ours, gloo, **at_least(gloo / ours, 1.0)),
    ]
    if bench.engine:
        alone = least["engine"]["median"]
        target = at_most(alone / limit, SMALL_FACTOR)
        figures.append(
            Figure("latency", "8 B, engine alone, C: send", "us", alone, limit, **target)
        )
    return figures


def _middle(bench: Bench) -> list[Figure]:
    figures = []
    for size in MIDDLE:
        run = partial(bench.ping_pong, size=size, trips=TRIPS // 2)
        limit = partial(bench.limit.run, "write", size, TRIPS // 2)
        figures += _against_gloo(bench, "latency", size_name(size), run, limit)
    run = partial(bench.batches, size=MIDDLE[0], count=8)
    return figures + _against_gloo(bench, "batch", f"{BATCH} of 1 KiB each way", run)


def _against_gloo(
    bench: Bench,
    part: str,
    name: str,
    run: Callable[..., list[float]],
    limit: Callable[[], list[float]] | None = None,
) -> list[Figure]:
    runs: Runs = {of: partial(run, group) for of, group in bench.groups.items()}
    if limit:
        runs["limit"] = lambda: limit()[:1]
    all_of = {of: summary(values) for of, values in bench.rounds_of(runs).items()}
    ours, gloo = all_of["ours"]["median"], all_of["gloo"]["median"]
    target = at_least(gloo / ours, 1.0)
    figures = [Figure(part, f"{name}, Gloo", "us", ours, gloo, **target, details=all_of)]
    if limit:
        plain = all_of["limit"]["median"]
        figures.append(Figure(part, f"{name}, C: write", "us", ours, plain, plain / ours))
    return figures


def _retries(bench: Bench) -> list[Figure]:
    """Return both ends' retries; the C program sends large messages twice, by push and by pull."""
    limit = sum(bench.retries[name] for name in ("limit", "push", "pull"))
    mine = [float(bench.retries["ours"]), float(limit)]
    of_both = [bench.share(mine if bench.rank == end else []) for end in (0, 1)]
    ours, theirs = (sum(counts) for counts in zip(*of_both, strict=True))
    target = at_most(ours / max(theirs, 1.0), 1.0)
    return [Figure("retries", "of the NICs, C: all", "times", ours, theirs, **target)]


def _large(bench: Bench, size: int) -> list[Figure]:
    count = COUNTS[size]
    samples = bench.rounds_of(
        {
            "push": lambda: bench.limit.run("push", size, count)[:1],
            "pull": lambda: bench.limit.run("pull", size, count)[:1],
            "ours": lambda: bench.stream(bench.groups["ours"], size, count),
            "gloo": lambda: bench.stream(bench.groups["gloo"], size, max(1, count // 4)),
        }
    )
    all_of = {name: summary(values) for name, values in samples.items()}
    ours, gloo = all_of["ours"]["median"], all_of["gloo"]["median"]
    name = size_name(size)
    figures = []
    for mode in ("push", "pull"):
        each = all_of[mode]["median"]
        share = SHARES[size] if mode == "push" else None
        figures.append(
            Figure(
                "stream",
                f"{name}, C: {mode}",
                "us each",
                ours,
                each,
                **at_least(each / ours, share),
                details=all_of,
            )
        )
    return [*figures, Figure("stream", f"{name}, Gloo", "us each", ours, gloo, gloo / ours)]


def main() -> int:
    """Measure, print and write."""
    options = report.lab_options(__doc__, rounds=7)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.rounds, Path(folder), options.json.parent)
        route = _route(bench.peer)
        figures: list[Figure] = []
        large = [lambda b, size=size: _large(b, size) for size in SHARES]
        for part in [_small, _middle, *large, _retries]:
            for figure in part(bench):
                figures.append(figure)
                if bench.rank == 0:
                    print(report.line(figure), flush=True)
        if bench.rank == 0:
            about = report.environment() | {"route": route}
            report.save(options.json, about, figures, [])
            print(f"written to {options.json}")
        dist.destroy_process_group()
    return 0


def _route(peer: int) -> str:
    import dlslime_backend

    return dlslime_backend.explain(peer)["text"]


if __name__ == "__main__":
    sys.exit(main())
