r"""The C++ program transfer_bench between two hosts, against equal reads on plain libibverbs.

    cmake -S tests/cpp -B build/cpp-plain -DSANITIZE=none
    cmake --build build/cpp-plain --target dlslime_transfer_bench
    torchrun --nnodes 2 --nproc-per-node 1 --node-rank R --master-addr A --master-port 29500 \
        benchmarks/transfer_limit.py --json out.json

or on one machine, in the lab:

    tests/lab/lab.py --pin --out /tmp/lab -- sh -c '.venv/bin/torchrun --nnodes 2 \
        --nproc-per-node 1 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 29500 \
        benchmarks/transfer_limit.py --json $LAB_OUT/transfer-limit.json'

Rank 1 reads batches of 160 blocks from rank 0: one batch at a time, and for information 4. Both
programs check the bytes read, rounds alternate, and a figure is the median of rounds. The aim is at
most 1.05 times the time of `limit/rdma_limit.c`. The exit status is 1 if a program has failed,
never for times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measuring import report
from measuring.report import Figure, at_most, size_name, summary
from pages.meeting import StoreMeeting, of_torchrun
from pages.options import UsageError
from rdma import Limit

PROGRAM = Path(__file__).parents[1] / "build" / "cpp-plain" / "dlslime_transfer_bench"
BATCH = 160
SIZES = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2_048_000]
SECONDS = 2  # of each program in a round, as far as trips go
TRIPS = {8 << 10: 200, 32 << 10: 60, 128 << 10: 20, 512 << 10: 7, 2_048_000: 3}
MOST = 1.05
PORT = 29720


def ours(meeting: StoreMeeting, size: int, concurrency: int) -> float:
    """Return the microseconds of a batch by transfer_bench, measured by rank 1; 0.0 at rank 0."""
    mode = ["target", "initiator"][meeting.rank]
    command = [str(PROGRAM), "--mode", mode, "--block_size", str(size), "--batch_size", str(BATCH)]
    command += ["--target_endpoint", f"{os.environ['MASTER_ADDR']}:{PORT}"]
    command += ["--duration", str(SECONDS), "--concurrent_num", str(concurrency)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    if meeting.rank == 0:
        return 0.0
    route = re.search("^route: (.+)$", done.stdout, re.MULTILINE)
    latency = re.search(r"^Average Latency: ([\d.]+) ms$", done.stdout, re.MULTILINE)
    assert route, done.stdout
    assert latency, done.stdout
    assert route[1] == "rdma", f"the route is {route[1]}"
    return float(latency[1]) * 1e3


def figures_of(meeting: StoreMeeting, limit: Limit, size: int, rounds: int) -> list[Figure]:
    """Return the figures of a size: one batch at a time, and several."""
    runs = {
        "limit": lambda: next(iter(limit.run("batch", size, TRIPS[size], BATCH)), 0.0),
        "ours": lambda: ours(meeting, size, 1),
        "4 at a time": lambda: ours(meeting, size, 4),
    }
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for _ in range(rounds):
        for name in order:
            samples[name].append(meeting.share(runs[name]())[1])
        order = order[1:] + order[:1]
    details = {name: summary(values) for name, values in samples.items()}
    base = median(samples["limit"])
    made = []
    for name in ("ours", "4 at a time"):
        value = median(samples[name])
        aim = at_most(value / base, MOST) if name == "ours" else {"ratio": value / base}
        label = f"{BATCH} x {size_name(size)}, {name}"
        made.append(Figure("blocks", label, "us", value, base, **aim, details=details))
    return made


def main() -> int:
    """Measure, print and write."""
    options = report.lab_options(__doc__, rounds=5)
    if not PROGRAM.exists():
        print(f"{PROGRAM} is missing: the first lines of {__file__} say how to build it")
        return 2
    figures = []
    try:
        with of_torchrun("transfer-limit") as meeting, tempfile.TemporaryDirectory() as folder:
            limit = Limit(meeting.rank, Path(folder))
            for size in SIZES:
                for figure in figures_of(meeting, limit, size, options.rounds):
                    figures.append(figure)
                    if meeting.rank == 0:
                        print(report.line(figure), flush=True)
            if meeting.rank == 0:
                report.save(options.json, report.environment(), figures, [])
    except (UsageError, subprocess.CalledProcessError) as error:
        print(f"{error}\n{getattr(error, 'stderr', '')}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
