r"""Transfers over each RDMA NIC alone, and over all: the aggregate's share of the sum.

    python benchmarks/scheduler_bench.py --mode target --target_endpoint 10.0.0.1:8000
    python benchmarks/scheduler_bench.py --mode initiator --target_endpoint 10.0.0.1:8000 \
        --device_name mlx5_0,mlx5_1 --block_size 204800 --batch_size 160 --duration 10

The flags are those of the original's C++ program. The nth NIC of a host is used with the nth of the
other host; the default of --device_name is all active NICs of each host. Each line is a run of
transfer_bench.py, in separate processes: --rounds of the runs take turns, and the median counts.
Hosts without an RDMA NIC get a single line, of any route. The exit status is 1 if bytes were wrong,
2 for bad input, else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import transfer_bench
from measuring.harness import JobError
from pages import engines, options, output, plots
from pages.base import NICS, nics
from pages.meeting import SocketMeeting, connect, listen
from pages.options import WRONG_BYTES, UsageError
from pages.pairs import Row

HEADERS = [
    "NICs",
    "Block Size (bytes)",
    "Batch Size",
    "Num Concurrency",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
    "Of the sum",
    *output.COMMON,
]
BLOCK = 204_800
ENGINE = "dlslime"  # the only engine that takes several named NICs for a pair

Pair = tuple[str, str]  # NICs of the target and of the initiator, with commas between


def parser() -> options.Parser:
    """Return the original's flags, and ours."""
    made = options.Parser(__doc__)
    made.add_argument("--mode", choices=["target", "initiator"], required=True)
    ends = {"type": options.address, "metavar": "HOST:PORT"}
    made.add_argument("--target-endpoint", "--target_endpoint", default=("127.0.0.1", 8000), **ends)
    made.add_argument(
        "--initiator-endpoint", "--initiator_endpoint", default=("127.0.0.1", 8001), **ends
    )
    made.add_argument("--num-concurrency", "--concurrent_num", type=options.positive)
    made.add_argument("--num-thread", "--num_thread", type=int, help="not used")
    made.add_argument("--numa-affinity", "--numa_affinity", nargs="?", help="not used")
    made.add_argument("--opcode", choices=["read", "write"], default="read")
    made.add_argument("--rounds", type=options.positive, default=1)
    transfer_bench.add_blocks(made)
    options.add_engines(made, [ENGINE])
    options.add_measuring(made)
    options.add_output(made)
    made.set_defaults(with_imm_data=False, block_size=BLOCK)
    return made


def active_nics() -> list[str]:
    """Return the host's RDMA NICs with a port that is up."""
    ports = {nic: sorted((NICS / nic / "ports").glob("*/state")) for nic in nics()}
    return [nic for nic, of in ports.items() if any("ACTIVE" in one.read_text() for one in of)]


def checked(asked: argparse.Namespace) -> None:
    """Refuse contradictory flags."""
    if options.names(asked.transfer_engine, engines.ONE_SIDED, "transfer engine") != [ENGINE]:
        raise UsageError(f"aggregated transfers are {ENGINE}'s alone")
    asked.rank = None
    transfer_bench.checked(asked)


def pairings(mine: list[str], meeting: SocketMeeting) -> list[Pair]:
    """Return the pairs of NICs, and the pair of all NICs; empty names for hosts without NICs."""
    here, there = meeting.share(mine)
    alone: list[Pair] = list(zip(here, there, strict=False))
    if len(alone) < 2:
        return alone or [("", "")]
    return [*alone, (",".join(here[: len(alone)]), ",".join(there[: len(alone)]))]


def free_port(host: str) -> int:
    """Return a free port of the host."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def one_run(asked: argparse.Namespace, pair: Pair, meeting: SocketMeeting) -> dict[str, Any]:
    """Run transfer_bench.py at the calling end; return its row, at the initiator.

    Raises:
        JobError: the run has failed.
    """
    target = asked.mode == "target"
    host = asked.target_endpoint[0]
    port = meeting.share(free_port(host) if target else 0)[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, transfer_bench.__file__, "--mode", asked.mode]
        command += ["--target_endpoint", f"{host}:{port}", "--json", str(path)]
        for name in ("block_size", "batch_size", "duration", "opcode", "device", "memory"):
            command += [f"--{name.replace('_', '-')}", str(getattr(asked, name))]
        command += ["--num-concurrency", str(asked.num_concurrency)]
        command += ["--qp-num", str(asked.qp_num), "--device-name", pair[0 if target else 1]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, WRONG_BYTES) or (not target and not path.exists()):
            raise JobError(f"transfer_bench.py has failed:\n{done.stdout}{done.stderr}")
        if target:
            return {}
        found: dict[str, Any] = json.loads(path.read_text())["rows"][0]
        return found


def cells(name: str, row: Row, share: str) -> list[str]:
    """Return a line of the table."""
    return [
        name,
        f"{row.size:,}",
        str(row.batch),
        str(row.concurrency),
        f"{row.latency:.3f}",
        f"{row.bandwidth:.3f}",
        share,
        *output.columns(row),
    ]


def label(pair: Pair, route: str) -> str:
    """Return the NICs of a line; of both hosts, if the hosts' names differ."""
    if not pair[0]:
        return f"none: {route}"
    return pair[0] if pair[0] == pair[1] else f"{pair[0]} - {pair[1]}"


def middle(rows: list[dict[str, Any]]) -> Row:
    """Return the run with the median bandwidth, among runs with wrong bytes if any."""
    wrong = [row for row in rows if row["error"]]
    rate = median(row["bandwidth"] for row in rows)
    chosen = min(wrong or rows, key=lambda row: abs(row["bandwidth"] - rate))
    return Row(**{name: value for name, value in chosen.items() if name != "verified"})


def measured(asked: argparse.Namespace, meeting: SocketMeeting) -> list[tuple[Pair, Row]]:
    """Return all lines, at the initiator; none at the target."""
    mine = [name for name in asked.device_name.split(",") if name] or active_nics()
    found: dict[Pair, list[dict[str, Any]]] = {pair: [] for pair in pairings(mine, meeting)}
    rounds = meeting.share(asked.rounds)[1]  # the initiator's, which is rank 1
    steps, speaks = rounds * len(found), asked.mode == "initiator"
    done = 0
    with output.Screen(["NICs", "Bandwidth(MB/s)"], speaks) as screen:
        for _ in range(rounds):
            for pair, rows in found.items():
                rows.append(one_run(asked, pair, meeting))
                done += 1
                if speaks:
                    name = label(pair, rows[-1]["route"])
                    screen.row([name, f"{rows[-1]['bandwidth']:.3f}"])
                    screen.progress(name, done / steps)
    return [(pair, middle(rows)) for pair, rows in found.items()] if speaks else []


def report(asked: argparse.Namespace, lines: list[tuple[Pair, Row]]) -> None:
    """Print and write, at the initiator."""
    screen = output.Screen(HEADERS, False)
    alone = sum(row.bandwidth for pair, row in lines if "," not in pair[0])
    for pair, row in lines:
        row.more["nics"] = label(pair, row.route)
        row.more["of_the_sum"] = row.bandwidth / alone if "," in pair[0] else None
        share = f"{row.bandwidth / alone:.2f}" if "," in pair[0] else ""
        screen.row(cells(row.more["nics"], row, share))
        if row.error:
            print(f"wrong bytes: {row.error}", flush=True)
    output.conclude(screen, asked, [row.as_dict() for _, row in lines], {})
    if asked.plot:
        rates = {row.more["nics"]: row.bandwidth for _, row in lines}
        plots.bars(asked.plot, "Aggregated transport", rates, "Bandwidth (MB/s)")


def run(asked: argparse.Namespace) -> int:
    """Run an end; return the exit status."""
    checked(asked)
    meet = listen if asked.mode == "target" else connect
    meeting = meet(asked.target_endpoint, asked.patience)
    lines = measured(asked, meeting)
    if lines:
        report(asked, lines)
    status = WRONG_BYTES if any(row.error for _, row in lines) else 0
    statuses: list[int] = meeting.share(status)
    meeting.close()
    return max(statuses)


def main() -> int:
    """Measure as the command line says."""
    made = parser()
    asked = made.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        return run(asked)
    except UsageError as error:
        made.refuse(error)
    except JobError as error:
        print(f"{made.prog}: {error}", file=sys.stderr, flush=True)
        return WRONG_BYTES


if __name__ == "__main__":
    sys.exit(main())
