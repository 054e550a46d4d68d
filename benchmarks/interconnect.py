r"""Bandwidth between every two hosts, NICs or GPUs, one pair at a time: a table and a heat map.

    torchrun --nnodes 2 --nproc-per-node 8 --node-rank R --master-addr A --master-port 6006 \
        benchmarks/interconnect.py --between gpus --plot pairs.png --save-csv

A rank stands for an end to measure: with --between hosts start a rank on each host; with gpus a
rank for each GPU, and with nics a rank for each NIC, chosen by the local rank. A line has the
initiator, a column the target, and a cell 10^6 bytes per second; --opcode write moves the bytes
from the line's to the column's. The exit status is 1 if bytes were wrong, 2 for bad input, else 0.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any

from measuring.report import size_name
from pages import engines, options, output, plots
from pages.base import MissingError, Settings, nics
from pages.meeting import StoreMeeting, of_torchrun
from pages.options import BAD_INPUT, WRONG_BYTES, HostError, UsageError, message_bytes
from pages.pairs import Memory, Pair, Row, Work, summed
from pages.sampling import Plan

NOTHING = float("nan")


def parser() -> options.Parser:
    """Return the flags of agg_transfer_bench_spmd.py that make sense here, and --between."""
    made = options.Parser(__doc__)
    made.add_argument("--between", choices=["ranks", "hosts", "nics", "gpus"], default="ranks")
    made.add_argument("--size", type=options.exponent, default=options.EXPONENTS[-1])
    made.add_argument("--batch-size", type=options.positive, default=1)
    made.add_argument("--num-concurrency", type=options.positive, default=4)
    made.add_argument("--num-iteration", type=options.positive, default=10)
    made.add_argument("--num-warmup-iteration", type=options.not_negative, default=2)
    made.add_argument("--opcode", choices=["read", "write"], default="read")
    options.add_engines(made, engines.ONE_SIDED)
    options.add_measuring(made)
    options.add_output(made)
    return made


def checked(asked: argparse.Namespace) -> None:
    """Refuse contradictory flags."""
    named = options.names(asked.transfer_engine, engines.ONE_SIDED, "transfer engine")
    if len(named) > 1:
        raise UsageError("one transfer engine at a time")
    asked.transfer_engine = named[0]
    if asked.between == "gpus" and asked.device == "cpu":
        raise UsageError("--between gpus does not go with --device cpu")
    if asked.between == "gpus":
        asked.device = "cuda"
    asked.qp_num = options.queue_pairs(asked.qp_num)
    options.check_outputs(asked)


class Place:
    """The host, NIC or GPU that the rank stands for."""

    def __init__(self, asked: argparse.Namespace, meeting: StoreMeeting) -> None:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        found = nics()
        if asked.between == "nics" and local >= len(found):
            raise HostError(f"--between nics: {local + 1} ranks here, and {len(found)} RDMA NICs")
        self.nic = found[local] if asked.between == "nics" else ""
        self.device = options.device_of(asked.device, local)
        host = socket.gethostname().split(".")[0]
        what = {"ranks": f"rank {meeting.rank}", "hosts": "", "nics": self.nic}
        what["gpus"] = str(self.device)
        self.label = f"{host} {what[asked.between]}".strip()


def measured(
    asked: argparse.Namespace, place: Place, meeting: StoreMeeting, ends: tuple[int, int]
) -> Row | None:
    """Return the pair's row, at both of its ends; None at other ranks, which have nothing to do.

    Raises:
        MissingError: the engine can't be used here.
    """
    if meeting.rank not in ends:
        return None
    pair = meeting.only(list(ends), f"pages/interconnect/{ends[0]}/{ends[1]}")
    settings = Settings(
        pair,
        pair.rank,
        1 - pair.rank,
        pair.rank == 0,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        qp_num=asked.qp_num,
        nic=place.nic,
        wheels=asked.wheels,
        protocol=asked.mooncake_protocol,
    )
    size = message_bytes(asked.size)
    memory = Memory(size, asked.memory << 20, place.device)
    engine = engines.load(asked.transfer_engine, memory.tensor, settings)
    plan = Plan(asked.num_iteration, asked.num_warmup_iteration)
    write, every = asked.opcode == "write", asked.check == "iteration"
    work = Work(write, asked.batch_size, asked.num_concurrency, plan, every)
    told = Pair(pair, settings.initiates, memory, engine).run(size, work)
    row = Row(asked.transfer_engine, 1, size, work.batch, work.concurrency)
    summed(row, pair.share(told))
    row.route = engine.route() if settings.initiates else ""
    pair.barrier()
    engine.close()
    return row


def matrix(
    asked: argparse.Namespace, place: Place, meeting: StoreMeeting, labels: list[str]
) -> list[dict[str, Any]]:
    """Measure every pair, one after the other; return all rows at all ranks.

    Raises:
        MissingError: a rank can't use the engine.
    """
    world = meeting.world
    pairs = [(i, j) for i in range(world) for j in range(world) if i != j]
    rows: list[dict[str, Any]] = []
    with output.Screen(["initiator", "target", "MB/s", "route"], meeting.rank == 0) as screen:
        for number, (i, j) in enumerate(pairs):
            problem, mine = "", None
            try:
                mine = measured(asked, place, meeting, (i, j))
            except MissingError as error:
                problem = str(error)
            told = meeting.share((problem, mine.as_dict() if mine is not None else None))
            if told[i][0]:
                raise MissingError(told[i][0])
            rows.append({"initiator": i, "target": j, **told[i][1]})
            last = rows[-1]
            screen.row([labels[i], labels[j], f"{last['bandwidth']:.3f}", last["route"]])
            screen.progress(f"{labels[i]} - {labels[j]}", (number + 1) / len(pairs))
    return rows


def report(asked: argparse.Namespace, labels: list[str], rows: list[dict[str, Any]]) -> None:
    """Print and write, at rank 0."""
    rates = [[NOTHING] * len(labels) for _ in labels]
    for row in rows:
        rates[row["initiator"]][row["target"]] = row["bandwidth"]
        if row["error"]:
            names = f"{labels[row['initiator']]} - {labels[row['target']]}"
            print(f"wrong bytes: {names}: {row['error']}", flush=True)
    table = output.Screen([f"{asked.opcode}, MB/s", *labels], False)
    for name, values in zip(labels, rates, strict=True):
        table.row([name, *("-" if value != value else f"{value:.3f}" for value in values)])
    size = size_name(message_bytes(asked.size))
    routes = sorted({row["route"] for row in rows})
    if len(routes) > 1:
        print(f"\nnot all pairs go the same way: {', '.join(routes)}, as the lines above say")
    print(f"\n{asked.transfer_engine}, {size}, {asked.num_concurrency} at a time", flush=True)
    output.conclude(table, asked, rows, {}, labels=labels)
    if asked.plot:
        title = f"{asked.transfer_engine}: {asked.opcode} of {size}, MB/s"
        plots.heat_map(asked.plot, title, labels, rates)


def run(asked: argparse.Namespace, meeting: StoreMeeting) -> int:
    """Measure all pairs; return the exit status."""
    place = Place(asked, meeting)
    labels: list[str] = meeting.share(place.label)
    try:
        rows = matrix(asked, place, meeting, labels)
    except MissingError as error:
        output.say(f"without {asked.transfer_engine}: {error}", meeting.rank == 0)
        return BAD_INPUT
    if meeting.rank == 0:
        report(asked, labels, rows)
    return WRONG_BYTES if any(row["error"] for row in rows) else 0


def main() -> int:
    """Measure as the command line says."""
    made = parser()
    asked = made.parse_args()
    try:
        checked(asked)
        with of_torchrun("interconnect", even=False) as meeting:
            return run(asked, meeting)
    except UsageError as error:
        made.refuse(error)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # some of the libraries crash, or wait, at their unloading
