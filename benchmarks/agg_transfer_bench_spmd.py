r"""Bandwidth of transfer engines between pairs of ranks, summed: the pages' table.

    torchrun --nnodes 2 --nproc-per-node 8 --node-rank R --master-addr A --master-port 6006 \
        benchmarks/agg_transfer_bench_spmd.py --transfer-engine dlslime \
        --qp-num 8 --batch-size 64 --num-iteration 100 --num-concurrency 8

    torchrun --standalone --nproc-per-node 2 benchmarks/agg_transfer_bench_spmd.py \
        --transfer-engine dlslime nixl mooncake upstream --wheels DIR --plot out.png

Ranks below half of the world initiate; the peer of a rank is half of the world away. Flags, units
(10^6 bytes per second; --size is an exponent, a message has 2 << e elements of four bytes) and the
first columns are the original's; dlslime adds columns behind. An iteration starts --num-concurrency
batches and waits for all; latency is an iteration's time divided by --num-concurrency. Bytes are
checked after each size. The exit status is 1 after wrong bytes, 2 for a bad command line, else 0.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from measuring.report import size_name
from pages import children, engines, options, output, plots
from pages.base import MissingError, Settings
from pages.children import Outcome
from pages.meeting import StoreMeeting, of_torchrun
from pages.options import BAD_INPUT, WRONG_BYTES, UsageError, message_bytes
from pages.pairs import Memory, Pair, Row, Work, summed
from pages.sampling import Plan

HEADERS = [
    "Transfer Engine",
    "#Channels",
    "Message Size (bytes)",
    "Batch Size",
    "Num Concurrency",
    "Total Transport (bytes)",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
    *output.COMMON,
]


def parser() -> options.Parser:
    """Return the original's flags and defaults, except --size, which ends at 128 MiB; then ours."""
    made = options.Parser(__doc__)
    made.add_argument("--batch-size", type=options.positive, default=1)
    made.add_argument("--size", nargs="+", type=options.exponent, default=options.EXPONENTS)
    made.add_argument("--num-concurrency", type=options.positive, default=16)
    made.add_argument("--num-iteration", type=options.positive, default=100)
    made.add_argument("--num-warmup-iteration", type=options.not_negative, default=10)
    made.add_argument("--opcode", choices=["read", "write"], default="write")
    made.add_argument("--with-imm-data", action="store_true", help="writes tell their end")
    made.add_argument("--nixl-port", type=int, default=5555, help="not used: NIXL needs no port")
    options.add_engines(made, list(engines.ENGINES))
    options.add_measuring(made)
    options.add_output(made)
    made.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # see children.py
    return made


def checked(asked: argparse.Namespace) -> list[str]:
    """Return the engines asked for; refuse contradictory flags."""
    names = options.names(asked.transfer_engine, list(engines.ENGINES), "transfer engine")
    if asked.with_imm_data and asked.opcode != "write":
        raise UsageError("--with-imm-data goes with --opcode write only")
    if asked.with_imm_data and asked.batch_size > 1 and "upstream" in names:
        raise UsageError("upstream tells of a batch of one only: --with-imm-data --batch-size 1")
    asked.qp_num = options.queue_pairs(asked.qp_num)
    options.check_outputs(asked)
    return names


def settings_of(asked: argparse.Namespace, meeting: StoreMeeting) -> Settings:
    """Return the settings of the rank's engine."""
    channels = meeting.world // 2
    return Settings(
        meeting,
        meeting.rank,
        (meeting.rank + channels) % meeting.world,
        meeting.rank < channels,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        qp_num=asked.qp_num,
        immediate=asked.with_imm_data,
        wheels=asked.wheels,
        protocol=asked.mooncake_protocol,
    )


def cells(row: Row) -> list[str]:
    """Return the original's strings, and ours."""
    return [
        row.engine,
        str(row.channels),
        f"{row.size:,}",
        str(row.batch),
        str(row.concurrency),
        f"{row.nbytes:,}",
        f"{row.latency:.3f}",
        f"{int(row.bandwidth):.3f}",
        *output.columns(row),
    ]


def measured(name: str, asked: argparse.Namespace, meeting: StoreMeeting) -> list[Row]:
    """Return the rows of an engine, at all ranks.

    Raises:
        MissingError: the engine can't be used here.
    """
    settings = settings_of(asked, meeting)
    device = options.device_of(asked.device, settings.local_rank)
    memory = Memory(message_bytes(max(asked.size)), asked.memory << 20, device)
    engine = engines.load(name, memory.tensor, settings)
    pair = Pair(meeting, settings.initiates, memory, engine)
    plan = Plan(asked.num_iteration, asked.num_warmup_iteration)
    write, every = asked.opcode == "write", asked.check == "iteration"
    work = Work(write, asked.batch_size, asked.num_concurrency, plan, every)
    rows = []
    with output.Screen(HEADERS, meeting.rank == 0) as screen:
        for exponent in asked.size:
            size = message_bytes(exponent)
            what = f"{name}, {size_name(size)}"
            told = pair.run(size, work, lambda share, what=what: screen.progress(what, share))
            row = Row(name, meeting.world // 2, size, work.batch, work.concurrency)
            rows.append(summed(row, meeting.share(told)))
            rows[-1].route = engine.route() if settings.initiates else ""
            screen.row(cells(rows[-1]))
    meeting.barrier()
    engine.close()
    return rows


def introduce(asked: argparse.Namespace, meeting: StoreMeeting) -> None:
    """Print the original's lines before the table."""
    half, world = meeting.world // 2, meeting.world
    speaks = meeting.rank == 0 and not asked.rows
    output.say(f"ranks [0, {half}) initiate, ranks [{half}, {world}) are targets", speaks)
    output.say(f"mode: {asked.opcode}, batch size: {asked.batch_size}", speaks)
    output.say(f"num concurrency: {asked.num_concurrency}, qp num: {asked.qp_num}", speaks)


def alone(name: str, asked: argparse.Namespace, meeting: StoreMeeting) -> Outcome:
    """Return the outcome of an engine in the calling process."""
    try:
        return Outcome([row.as_dict() for row in measured(name, asked, meeting)])
    except MissingError as error:
        return Outcome(missing=str(error))


def concluded(
    names: list[str], outcomes: dict[str, Outcome], asked: argparse.Namespace, speaks: bool
) -> int:
    """Print and write all results; return the exit status."""
    rows = [row for outcome in outcomes.values() for row in outcome.rows]
    missing = {name: one.missing for name, one in outcomes.items() if one.missing}
    failed = {name: one.failed for name, one in outcomes.items() if one.failed}
    for name, reason in {**missing, **failed}.items():
        output.say(f"without {name}: {reason}", speaks)
    if speaks and (len(names) > 1 or not missing):
        whole = output.Screen(HEADERS, False)
        for row in rows:
            whole.row(cells(as_row(row)))
            if row["error"]:
                print(f"wrong bytes by {row['engine']}: {row['error']}", flush=True)
        output.conclude(whole, asked, rows, missing, failed=failed)
        if asked.plot:
            plots.curves(asked.plot, "Aggregated transfers", curves(rows))
    if len(missing) == len(names) == 1:
        return BAD_INPUT
    wrong = any(row["error"] for row in rows)
    return WRONG_BYTES if wrong or "dlslime" in failed else 0


def as_row(row: dict[str, Any]) -> Row:
    """Return a row from its JSON."""
    return Row(**{name: value for name, value in row.items() if name != "verified"})


def curves(rows: list[dict[str, Any]]) -> dict[str, plots.Curve]:
    """Return the curves to draw."""
    drawn: dict[str, plots.Curve] = {}
    for row in rows:
        curve = drawn.setdefault(row["engine"], [])
        curve.append((row["size"], row["bandwidth"], row["latency"]))
    return drawn


def run(asked: argparse.Namespace, names: list[str], meeting: StoreMeeting) -> int:
    """Run all engines, one after the other; return the exit status."""
    introduce(asked, meeting)
    if asked.rows:
        outcome = alone(names[0], asked, meeting)
        return children.tell(asked.rows, outcome.rows, outcome.missing)
    if len(names) == 1:
        outcomes = {names[0]: alone(names[0], asked, meeting)}
    else:
        outcomes = {name: children.run(name, meeting) for name in names}
    return concluded(names, outcomes, asked, meeting.rank == 0)


def main() -> int:
    """Measure as the command line says."""
    made = parser()
    asked = made.parse_args()
    try:
        names = checked(asked)
        with of_torchrun(f"agg/{names[0]}" if asked.rows else "agg") as meeting:
            return run(asked, names, meeting)
    except UsageError as error:
        made.refuse(error)


if __name__ == "__main__":
    sys.stdout.flush()
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # some of the libraries crash, or wait, at their unloading
