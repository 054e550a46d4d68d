r"""Transfers between two processes without torchrun: the target, and the initiator that reports.

    python benchmarks/transfer_bench.py --rank 1                # flags of the original's program
    python benchmarks/transfer_bench.py --rank 0 --opcode read  # rank 0 transfers and reports

    python benchmarks/transfer_bench.py --mode target --target_endpoint 10.0.0.1:8000
    python benchmarks/transfer_bench.py --mode initiator --target_endpoint 10.0.0.1:8000 \
        --block_size 2048000 --batch_size 160 --concurrent_num 20 --duration 10

With --rank the report has a line for each --size (an exponent: 2 << e elements of four bytes), of
100 iterations. With --mode, as in the original's C++ program, one block size is moved for
--duration seconds. Rank 0, or the target of --mode, listens at the target's endpoint, and the other
end connects there; the initiator's endpoint is not used. The initiator's flags decide the
measurement; differing flags of the target do not count. Bandwidth is in 10^6 bytes per second,
throughput, as in the original's program, in MiB/s. The exit status is 1 if bytes were wrong, 2 for
bad input, else 0.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from measuring.harness import JobError
from measuring.report import size_name
from pages import engines, options, output, plots
from pages.base import MissingError, Settings, nics
from pages.meeting import SocketMeeting, connect, listen
from pages.options import BAD_INPUT, EXPONENTS, WRONG_BYTES, UsageError, message_bytes
from pages.pairs import PAGE, Memory, Pair, Row, Work, summed
from pages.sampling import Plan

HEADERS = [
    "Message Size (bytes)",
    "Total Transport (bytes)",
    "Target Affinity",
    "Initiator Affinity",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
    *output.COMMON,
]
# The C++ program's defaults, for --mode.
BLOCK, BATCH, CONCURRENT, DURATION = 2_048_000, 160, 20, 10.0
AGREED = ("engine", "sizes", "batch", "concurrency", "write", "immediate", "every", "plan", "room")


def add_blocks(made: argparse.ArgumentParser) -> None:
    """Add the C++ programs' flags, with underlines as in C++, or hyphens."""
    made.add_argument("--block-size", "--block_size", type=options.positive)
    made.add_argument("--batch-size", "--batch_size", type=options.positive)
    made.add_argument("--buffer-size", "--buffer_size", type=options.positive)
    made.add_argument("--duration", type=options.seconds, help="seconds, in place of iterations")
    made.add_argument("--device-name", "--device_name", default="", help="RDMA devices: a,b")
    made.add_argument("--ib-port", "--ib_port", type=options.positive, default=1)
    made.add_argument("--link-type", "--link_type", default="auto")
    made.add_argument("--patience", type=options.seconds, default=60.0, help="s for the other end")


def parser() -> options.Parser:
    """Return the flags of the original's Python program and of its C++ program, and ours."""
    made = options.Parser(__doc__)
    role = made.add_mutually_exclusive_group(required=True)
    role.add_argument("--rank", type=int, choices=[0, 1], help="0 transfers and reports")
    role.add_argument("--mode", choices=["target", "initiator"], help="the initiator reports")
    made.add_argument("--world-size", type=int, choices=[2], default=2)
    made.add_argument("--size", nargs="+", type=options.exponent, default=EXPONENTS)
    ends = {"type": options.address, "metavar": "HOST:PORT"}
    made.add_argument("--target-endpoint", "--target_endpoint", default=("127.0.0.1", 6006), **ends)
    made.add_argument(
        "--initiator-endpoint", "--initiator_endpoint", default=("127.0.0.1", 6007), **ends
    )
    made.add_argument("--target-affi", type=options.not_negative, default=0, help="GPU, NIC")
    made.add_argument("--initiator-affi", type=options.not_negative, default=1, help="GPU, NIC")
    made.add_argument("--num-concurrency", "--concurrent_num", type=options.positive)
    made.add_argument("--num-iteration", type=options.positive, default=100)
    made.add_argument("--num-warmup-iteration", type=options.not_negative, default=10)
    made.add_argument("--opcode", choices=["read", "write"], default="read")
    made.add_argument("--with-imm-data", action="store_true", help="writes tell their end")
    add_blocks(made)
    options.add_engines(made, engines.ONE_SIDED)
    options.add_measuring(made)
    options.add_output(made)
    return made


def checked(asked: argparse.Namespace) -> None:
    """Fill in flags that depend on others; refuse contradictory flags."""
    named = options.names(asked.transfer_engine, engines.ONE_SIDED, "transfer engine")
    if len(named) > 1:
        raise UsageError("one transfer engine at a time")
    asked.transfer_engine = named[0]
    if asked.mode:
        asked.block_size = asked.block_size or BLOCK
        asked.duration = asked.duration or DURATION
    blocks = bool(asked.block_size)
    asked.batch_size = asked.batch_size or (BATCH if blocks else 1)
    asked.num_concurrency = asked.num_concurrency or (CONCURRENT if blocks else 16)
    if blocks and asked.buffer_size and asked.buffer_size < asked.batch_size * asked.block_size:
        raise UsageError("--buffer_size is less than --batch_size times --block_size")
    if asked.with_imm_data and asked.opcode != "write":
        raise UsageError("--with-imm-data goes with --opcode write only")
    if asked.with_imm_data and asked.transfer_engine == "upstream" and asked.batch_size > 1:
        raise UsageError("upstream tells of a batch of one only: --with-imm-data --batch-size 1")
    if asked.duration and (asked.with_imm_data or asked.check == "iteration"):
        raise UsageError("--duration goes neither with --with-imm-data nor --check iteration")
    for name in filter(None, asked.device_name.split(",")):
        if name not in nics():
            found = ", ".join(nics()) or "none"
            raise UsageError(f"there is no RDMA device {name} on this host, which has {found}")
    asked.qp_num = options.queue_pairs(asked.qp_num)
    options.check_outputs(asked)


def agreed(asked: argparse.Namespace, meeting: SocketMeeting, active: bool) -> dict[str, Any]:
    """Return the measurement's parameters, equal at both ends: the active end's flags.

    Raises:
        UsageError: both ends play one part, or the engines differ.
    """
    sizes = [asked.block_size] if asked.block_size else [message_bytes(e) for e in asked.size]
    plan = [asked.num_iteration, asked.num_warmup_iteration, asked.duration or 0.0]
    write, every = asked.opcode == "write", asked.check == "iteration"
    values = (asked.transfer_engine, sizes, asked.batch_size, asked.num_concurrency)
    need = asked.batch_size * (sizes[0] + 2 * PAGE) if asked.block_size else 0
    room = max(need, asked.memory << 20)
    mine = dict(zip(AGREED, (*values, write, asked.with_imm_data, every, plan, room), strict=True))
    both = meeting.share({**mine, "active": active})
    if sum(one["active"] for one in both) != 1:
        raise UsageError("both processes play the same part")
    if both[0]["engine"] != both[1]["engine"]:
        raise UsageError(f"engines differ: {both[0]['engine']} and {both[1]['engine']}")
    chosen: dict[str, Any] = next(one for one in both if one["active"])
    return chosen


def cells(row: Row) -> list[str]:
    """Return the original's strings, and ours."""
    return [
        f"{row.size:,}",
        f"{row.size * row.batch * row.concurrency:,}",
        str(row.more["target_affinity"]),
        str(row.more["initiator_affinity"]),
        f"{row.latency:.3f}",
        f"{row.bandwidth:.3f}",
        *output.columns(row),
    ]


def settings_of(asked: argparse.Namespace, meeting: SocketMeeting, active: bool) -> Settings:
    """Return the settings of the end's engine."""
    at_target = meeting.rank == 0  # the target's endpoint is at rank 0 in both ways to start
    return Settings(
        meeting,
        meeting.rank,
        1 - meeting.rank,
        active,
        local_rank=asked.target_affi if at_target else asked.initiator_affi,
        qp_num=asked.qp_num,
        nic=asked.device_name,
        ib_port=asked.ib_port,
        link_type=asked.link_type,
        immediate=asked.with_imm_data,
        wheels=asked.wheels,
        protocol=asked.mooncake_protocol,
        host=(asked.target_endpoint if at_target else asked.initiator_endpoint)[0],
    )


def measured(asked: argparse.Namespace, meeting: SocketMeeting, active: bool) -> list[Row]:
    """Return the rows, at both ends.

    Raises:
        MissingError: the engine can't be used here.
    """
    what = agreed(asked, meeting, active)
    asked.with_imm_data = what["immediate"]
    settings = settings_of(asked, meeting, active)
    device = options.device_of(asked.device, settings.local_rank)
    memory = Memory(max(what["sizes"]), what["room"], device)
    engine = engines.load(what["engine"], memory.tensor, settings)
    pair = Pair(meeting, active, memory, engine)
    plan, every = Plan(*what["plan"]), what["every"]
    work = Work(what["write"], what["batch"], what["concurrency"], plan, every)
    rows = []
    with output.Screen(HEADERS, active) as screen:
        for size in what["sizes"]:
            name = size_name(size)
            told = pair.run(size, work, lambda share, name=name: screen.progress(name, share))
            row = Row(what["engine"], 1, size, work.batch, work.concurrency)
            row.more = {
                "target_affinity": asked.target_affi,
                "initiator_affinity": asked.initiator_affi,
                "seconds": told["seconds"],
            }
            rows.append(summed(row, meeting.share(told)))
            rows[-1].route = engine.route() if active else ""
            screen.row(cells(rows[-1]))
    meeting.barrier()
    engine.close()
    return rows


def closing(row: Row) -> str:
    """Return the C++ program's lines."""
    trips, seconds = row.samples * row.concurrency, row.more["seconds"]
    mebibytes = row.nbytes / (1 << 20)
    lines = {
        "Batch size": row.batch,
        "Block size": row.size,
        "Total trips": trips,
        "Total transferred": f"{mebibytes:.0f} MiB",
        "Duration": f"{seconds:.3f} seconds",
        "Average Latency": f"{seconds / trips * 1e3:.3f} ms/trip",
        "Throughput": f"{mebibytes / seconds:.3f} MiB/s",
    }
    return "\n".join(f"{name:18s}: {value}" for name, value in lines.items())


def report(asked: argparse.Namespace, rows: list[Row]) -> None:
    """Print and write, at the end that transfers."""
    screen = output.Screen(HEADERS, False)
    for row in rows:
        screen.row(cells(row))
        if row.error:
            print(f"wrong bytes: {row.error}", flush=True)
    output.conclude(screen, asked, [row.as_dict() for row in rows], {})
    if asked.block_size:
        print(closing(rows[0]), flush=True)
    if asked.plot:
        curve = [(row.size, row.bandwidth, row.latency) for row in rows]
        plots.curves(asked.plot, "Transfers between two processes", {rows[0].engine: curve})


def run(asked: argparse.Namespace) -> int:
    """Run an end; return the exit status."""
    checked(asked)
    active = asked.rank == 0 or asked.mode == "initiator"
    waits = asked.rank == 0 or asked.mode == "target"
    meet = listen if waits else connect
    meeting = meet(asked.target_endpoint, asked.patience)
    try:
        rows = measured(asked, meeting, active)
    except MissingError as error:
        print(f"without {asked.transfer_engine}: {error}", flush=True)
        return BAD_INPUT
    if active:
        report(asked, rows)
    meeting.close()
    return WRONG_BYTES if any(row.error for row in rows) else 0


def main() -> int:
    """Measure as the command line says."""
    made = parser()
    asked = made.parse_args()
    try:
        return run(asked)
    except UsageError as error:
        made.refuse(error)
    except JobError as error:
        print(f"{made.prog}: {error}", file=sys.stderr, flush=True)
        return WRONG_BYTES


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # some of the libraries crash, or wait, at their unloading
