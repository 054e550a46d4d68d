r"""torch's one-sided transports (torch 2.15 and later) side by side, dlslime's among them.

    torchrun --standalone --nproc-per-node 2 benchmarks/torch_transports.py --backend dlslime,nixl

torch's own program, benchmarks/distributed/transport/benchmark.py of its sources, measures one
transport in a run, and takes dlslime's by `--backend dlslime`. The program here measures as torch's
does, with torch's flags: the even rank of each pair of neighbours writes to and reads from the odd
rank, by one transfer at a time. By default all transports known to torch are measured (2.15.0:
NIXL's and dlslime's); a transport that can't be made or connected is left out. With an older torch
the program says so and ends with status 0. The exit status is 1 if bytes were wrong, 2 for bad
input, else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from typing import Any

import torch

from measuring.report import size_name
from measuring.transfer_libraries import Exchange, Piece
from pages import engines, options, output, plots
from pages.base import MissingError, Start, Wait
from pages.meeting import StoreMeeting, of_torchrun
from pages.options import BAD_INPUT, WRONG_BYTES, UsageError
from pages.pairs import Memory, Pair, Row, Work, summed
from pages.sampling import Plan

SIZES = [8 << n for n in range(0, 24, 3)] + [32 << 20, 128 << 20]
HEADERS = [
    "Transport",
    "Opcode",
    "#Channels",
    "Message Size (bytes)",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
    *output.COMMON,
]


def sizes_of(text: str) -> list[int]:
    """Return sizes in bytes with commas between, as in torch's program."""
    return [options.positive(word) for word in text.split(",")]


def parser() -> options.Parser:
    """Return the flags of torch's program, and ours."""
    made = options.Parser(__doc__)
    made.add_argument("--backend", nargs="+", help="transports; default: all that torch knows")
    made.add_argument("--sizes", type=sizes_of, default=SIZES, help="bytes: a,b,c")
    made.add_argument("--warmup", type=options.not_negative, default=10)
    made.add_argument("--iterations", type=options.positive, default=100)
    made.add_argument("--async-op", action="store_true", help="submit, then Work.wait()")
    made.add_argument("--options", default="{}", help="JSON: of the transport, or one per rank")
    options.add_measuring(made)
    options.add_output(made)
    return made


def interface() -> Any:
    """Return torch's module, or None with an older torch."""
    try:
        from torch.distributed import _transport
    except ImportError:
        return None
    return _transport


def checked(asked: argparse.Namespace, known: list[str]) -> list[dict[str, Any]]:
    """Return the options of each rank of a pair; refuse contradictory flags."""
    asked.backend = options.names(asked.backend or known, known, "transport")
    try:
        found = json.loads(asked.options)
    except ValueError as error:
        raise UsageError(f"--options is no JSON: {error}") from None
    both = found if isinstance(found, list) else [found, found]
    if len(both) != 2 or not all(isinstance(one, dict) for one in both):
        raise UsageError("--options is an object, or a list of two")
    options.check_outputs(asked)
    return both


class Engine:
    """A transport with the interface that `pairs.Pair` needs of an engine."""

    serves = False

    def __init__(self, transport: Any, memory: torch.Tensor, exchange: Exchange, later: bool):
        self._transport = transport
        self._tensor = memory
        self._exchange = exchange
        self._later = later
        self._memory: Any = None

    def prepare(self, pieces: list[Piece], write: bool) -> Start:
        """Register the message of a size at both ends; return a function that moves the message."""
        ((at, size),) = pieces
        self._let_go()
        self._memory = self._transport.register_memory(self._tensor[at : at + size])
        exposed = self._memory.to_remote_buffer()
        there = type(exposed).deserialize(self._exchange(exposed.serialize()))
        here = self._memory.to_view() if write else self._memory.to_mutable_view()
        call = self._transport.write if write else self._transport.read

        def begin() -> Wait:
            return call(here, there, async_op=True).wait

        def move() -> Wait:
            if call(here, there) != 0:
                raise RuntimeError("a transfer has failed")
            return lambda: None

        return begin if self._later else move

    def _let_go(self) -> None:
        if self._memory is not None:
            self._exchange(b"")  # the other end has stopped using the memory
            self._transport.unregister_memory(self._memory)

    def close(self) -> None:
        """End the pair."""
        self._let_go()
        self._transport.close()


def connected(
    name: str, asked: argparse.Namespace, device: torch.device, meeting: StoreMeeting, mine: Any
) -> Any:
    """Return a transport to the rank's neighbour.

    Raises:
        MissingError: a rank can't make or connect the transport; all ranks raise the error.
    """
    made, problem, url = None, "", None
    try:
        made = interface().new_transport(name, device, **mine)
        url = made.bind()
    except Exception as error:  # noqa: BLE001 - of a transport used only for comparison
        problem = engines.text_of(error)
    urls = meeting.share(url)
    try:
        if all(urls) and made.connect(urls[meeting.rank ^ 1]) != 0:
            problem = "it does not connect"
    except Exception as error:  # noqa: BLE001 - of a transport used only for comparison
        problem = engines.text_of(error)
    problems = list(filter(None, meeting.share(problem)))
    if problems:
        if made is not None:
            with suppress(Exception):
                made.close()
        raise MissingError(problems[0])
    return made


def measured(
    name: str,
    asked: argparse.Namespace,
    memory: Memory,
    meeting: StoreMeeting,
    mine: Any,
    screen: output.Screen,
) -> list[Row]:
    """Return the rows of a transport, at all ranks.

    Raises:
        MissingError: the transport can't be used here.
    """
    transport = connected(name, asked, memory.tensor.device, meeting, mine)

    def exchange(value: bytes) -> Any:
        return meeting.share(value)[meeting.rank ^ 1]

    engine = Engine(transport, memory.tensor, exchange, asked.async_op)
    pair = Pair(meeting, meeting.rank % 2 == 0, memory, engine)
    plan, every = Plan(asked.iterations, asked.warmup), asked.check == "iteration"
    rows = []
    for size in asked.sizes:
        for opcode in ("write", "read"):
            work = Work(opcode == "write", 1, 1, plan, every)
            told = pair.run(size, work)
            row = Row(name, meeting.world // 2, size, 1, 1, more={"opcode": opcode})
            rows.append(summed(row, meeting.share(told)))
            screen.row(cells(rows[-1]))
            screen.progress(f"{name}, {size_name(size)}", len(rows) / len(asked.sizes) / 2)
    meeting.barrier()
    engine.close()
    return rows


def cells(row: Row) -> list[str]:
    """Return a line of the table."""
    return [
        row.engine,
        row.more["opcode"],
        str(row.channels),
        f"{row.size:,}",
        f"{row.latency:.4f}",
        f"{row.bandwidth:.3f}",
        *output.columns(row),
    ]


def report(asked: argparse.Namespace, rows: list[Row], without: dict[str, str]) -> None:
    """Print and write, at rank 0."""
    screen = output.Screen(HEADERS, False)
    drawn: dict[str, plots.Curve] = {}
    for row in rows:
        screen.row(cells(row))
        curve = drawn.setdefault(f"{row.engine}, {row.more['opcode']}", [])
        curve.append((row.size, row.bandwidth, row.latency))
        if row.error:
            print(f"wrong bytes by {row.engine}: {row.error}", flush=True)
    output.conclude(screen, asked, [row.as_dict() for row in rows], without)
    if asked.plot:
        plots.curves(asked.plot, "One-sided transports of torch", drawn)


def run(asked: argparse.Namespace, both: list[dict[str, Any]], meeting: StoreMeeting) -> int:
    """Measure all transports; return the exit status."""
    device = options.device_of(asked.device, int(os.environ.get("LOCAL_RANK", "0")))
    memory = Memory(max(asked.sizes), asked.memory << 20, device)
    rows: list[Row] = []
    without: dict[str, str] = {}
    with output.Screen(HEADERS, meeting.rank == 0) as screen:
        for name in asked.backend:
            mine = both[meeting.rank % 2]
            try:
                rows += measured(name, asked, memory, meeting, mine, screen)
            except MissingError as error:
                without[name] = str(error)
                output.say(f"without {name}: {error}", meeting.rank == 0)
    if meeting.rank == 0:
        report(asked, rows, without)
    if not rows and len(without) == 1:
        return BAD_INPUT
    return WRONG_BYTES if any(row.error for row in rows) else 0


def main() -> int:
    """Measure as the command line says."""
    made = parser()
    asked = made.parse_args()
    if interface() is None:
        version = torch.__version__
        output.say(
            f"skipped: torch {version} has no one-sided transports; they come with torch 2.15",
            options.is_first(),
        )
        return 0
    try:
        both = checked(asked, list(interface().available_transports()))
        with of_torchrun("transports") as meeting:
            return run(asked, both, meeting)
    except UsageError as error:
        made.refuse(error)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # some of the libraries crash, or wait, at their unloading
