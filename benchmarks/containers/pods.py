"""Time messages between two containers of one host beside the same route within one.

    python benchmarks/containers/pods.py
    python benchmarks/containers/pods.py --json pods.json

Two processes with user, PID, IPC, mount and network namespaces of their own, like pods of one node,
meet in a directory (DLSLIME_RENDEZVOUS_DIR). Beside them, in the same run and in turns: two
processes without namespaces that stream through shared memory as well (DLSLIME_CMA=off), and two
that copy between their memories, which separate PID namespaces rule out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = [1 << 20, 64 << 20]  # bytes
ROUNDS = 15  # each starts new processes; their medians differ up to twofold
_OWN = ["--user", "--map-root-user", "--pid", "--fork", "--ipc", "--mount", "--net", "--mount-proc"]
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "pods": (["unshare", *_OWN], {}),
    "staged": ([], {"DLSLIME_CMA": "off"}),
    "cma": ([], {}),
}


def rank_main(folder: str, rank: int) -> None:
    """Run one rank of a ping-pong; rank 0 prints the median one-way times in microseconds."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "dlslime", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2
    )
    medians = []
    for size in SIZES:
        tensor = torch.ones(size, dtype=torch.uint8)
        times = []
        for _ in range(max(10, (1 << 28) // size)):
            start = time.perf_counter()
            for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
                call(tensor, 1 - rank)
            times.append((time.perf_counter() - start) / 2)
        medians.append(statistics.median(times) * 1e6)
    if rank == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


def once(way: str) -> list[float]:
    """Run both ranks by a way; return the one-way times in microseconds, by size."""
    prefix, variables = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "DLSLIME_RENDEZVOUS_DIR": folder, **variables}
        ranks = [
            subprocess.Popen(
                [*prefix, sys.executable, __file__, "--rank", str(rank), folder],
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(2)
        ]
        texts = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit(f"{way} failed")
    return [float(value) for value in json.loads(texts[0])]


def main() -> None:
    """Run the ways in turns, and print medians of the rounds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the figures into a file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("folder", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options.folder, options.rank)
        return
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            found[way].append(once(way))
    for i, size in enumerate(SIZES):
        times = {way: [one[i] for one in found[way]] for way in WAYS}
        medians = {way: statistics.median(times[way]) for way in WAYS}
        row = ", ".join(
            f"{way} {medians[way]:,.0f} us ({min(times[way]):,.0f} to {max(times[way]):,.0f})"
            for way in WAYS
        )
        print(f"{size >> 20} MiB: {row}; pods / staged {medians['pods'] / medians['staged']:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"sizes": SIZES, "microseconds": found}, indent=1))


if __name__ == "__main__":
    main()
