r"""Sends and receives of torch.distributed, any c10d backends side by side in one run.

    torchrun --nproc-per-node 2 --nnodes=1 benchmarks/sendrecv_bench.py --backends dlslime,gloo

    python benchmarks/sendrecv_bench.py --mode send --master-port 6008 --sizes 1024 1048576
    python benchmarks/sendrecv_bench.py --mode recv --master-port 6008 --sizes 1024 1048576

Ranks below half of the world send, each to the rank half of the world away. --size is in elements
of four bytes, --sizes in bytes, as in the original's two programs. An iteration begins as many
isend or irecv as --num-concurrency says and waits for all; its time is the receiver's. Backends
take turns: --rounds of them, in turning order, each after an iteration that does not count. Latency
is an iteration's time divided by --num-concurrency (the original divides the time of all
iterations). By default all backends of the installed torch and of the machine are measured. The
exit status is 1 if bytes were wrong, 2 for bad input, else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

import torch
import torch.distributed as dist

from measuring.harness import PayloadError, interleave
from measuring.report import size_name
from pages import options, output, plots
from pages.meeting import StoreMeeting, of_torchrun
from pages.options import BAD_INPUT, WRONG_BYTES, UsageError
from pages.pairs import Memory, Row, iteration, summed
from pages.sampling import Plan, Samples, measure, thinned

BACKENDS = ["dlslime", "gloo", "nccl", "ucc", "mpi"]
HEADERS = [
    "Backend",
    "#Channels",
    "Message Size (bytes)",
    "Total Transport (bytes)",
    "Num Concurrency",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
    *output.COMMON,
]


def parser() -> options.Parser:
    """Return the flags of the original's two programs, and ours."""
    made = options.Parser(__doc__)
    elements = [2 << n for n in options.EXPONENTS]
    made.add_argument("--size", nargs="+", type=options.positive, default=elements)
    made.add_argument("--sizes", nargs="+", type=options.positive, help="in bytes")
    made.add_argument("--num-concurrency", type=options.positive, default=8)
    made.add_argument("--num-iteration", "--iterations", type=options.positive, default=100)
    made.add_argument("--num-warmup-iteration", type=options.not_negative, default=10)
    made.add_argument("--rounds", type=options.positive, default=5, help="turns of each backend")
    made.add_argument("--backends", nargs="+", help=f"of {', '.join(BACKENDS)}; default: all")
    made.add_argument("--mode", choices=["send", "recv"], help="rank 0 or 1 of 2, no torchrun")
    made.add_argument("--master-addr", default="127.0.0.1", help="with --mode")
    made.add_argument("--master-port", type=options.positive, default=6008, help="with --mode")
    made.add_argument("--use-gpu", action="store_true", help="as --device cuda")
    options.add_measuring(made)
    options.add_output(made)
    return made


def missing(backend: str, device: torch.device) -> str:
    """Return the reason against using a backend here, or ""."""
    if backend == "dlslime":
        with contextlib.suppress(ImportError):
            import dlslime_backend  # noqa: F401 - registers itself, also if not installed
        if "dlslime" not in dist.Backend.backend_list:
            return "dlslime_backend is not installed"
    elif not dist.is_backend_available(backend):
        return f"this torch is built without {backend}"
    if backend == "nccl" and device.type != "cuda":
        return "NCCL moves memory of GPUs only, and there is none"
    if backend == "mpi" and "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return "MPI works under mpirun only"
    return ""


def checked(asked: argparse.Namespace) -> list[int]:
    """Return the sizes in bytes; refuse contradictory flags."""
    asked.backends = options.names(asked.backends or BACKENDS, BACKENDS, "backend")
    if asked.use_gpu:
        asked.device = "cuda"
    if asked.mode:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if asked.mode == "send" else "1"
        os.environ.update(WORLD_SIZE="2", MASTER_PORT=str(asked.master_port))
        os.environ.setdefault("MASTER_ADDR", asked.master_addr)
    asked.rounds = min(asked.rounds, asked.num_iteration)
    options.check_outputs(asked)
    return asked.sizes or [elements * options.FLOAT for elements in asked.size]


class Bench:
    """A rank and its groups, one for each backend."""

    def __init__(
        self, asked: argparse.Namespace, meeting: StoreMeeting, memory: Memory, names: list[str]
    ) -> None:
        self._asked = asked
        self._meeting = meeting
        self._memory = memory
        self._names = names
        self._sends = meeting.rank < meeting.world // 2
        self._peer = (meeting.rank + meeting.world // 2) % meeting.world
        self._number = 0
        self._errors: dict[str, str] = {}
        meeting.open_groups({name: name for name in names})

    def _round(self, name: str, size: int, plan: Plan) -> Samples:
        """Run some iterations of a backend, and check the bytes."""
        self._number += 1
        memory, group = self._memory, self._meeting.groups[name]
        pieces = memory.lay_out(size, self._asked.num_concurrency)
        call = dist.isend if self._sends else dist.irecv
        views = [memory.tensor[at : at + length] for at, length in pieces]

        def start(view: torch.Tensor) -> object:
            work = call(view, self._peer, group=group)
            assert work is not None
            return work.wait

        once = iteration([lambda view=view: start(view) for view in views], memory)
        if self._sends:
            memory.fill(self._number)
        else:
            memory.clear()
        self._meeting.barrier()
        once()  # the ends have not left the barrier at the same time
        if not self._sends:
            memory.clear()
        samples = measure(once, plan)
        self._meeting.barrier()
        if not self._sends:
            try:
                memory.check(self._number, f"{size} bytes")
            except PayloadError as error:
                self._errors.setdefault(name, str(error))
        return samples

    def rows(self, size: int, screen: output.Screen) -> list[Row]:
        """Measure a size with all backends."""
        asked, found = self._asked, {name: Samples() for name in self._names}
        self._errors = {}
        for name in self._names:
            if asked.num_warmup_iteration:
                self._round(name, size, Plan(asked.num_warmup_iteration))

        def once(name: str, number: int) -> list[float]:
            share = asked.num_iteration // asked.rounds
            more = 1 if number < asked.num_iteration % asked.rounds else 0
            taken = self._round(name, size, Plan(share + more))
            found[name].times += taken.times
            found[name].cpu += taken.cpu
            screen.progress(f"{name}, {size_name(size)}", (number + 1) / asked.rounds)
            return taken.times

        interleave(self._meeting, self._names, asked.rounds, once)
        rows = [self._row(name, size, found[name]) for name in self._names]
        for row in rows:
            screen.row(cells(row))
        return rows

    def _row(self, name: str, size: int, samples: Samples) -> Row:
        told = {
            "times": [] if self._sends else thinned(samples.times),
            "count": len(samples.times),
            "seconds": samples.elapsed,
            "cpu": samples.cpu,
            "error": self._errors.get(name, ""),
            "initiates": not self._sends,  # the end with the times that count
        }
        row = Row(name, self._meeting.world // 2, size, 1, self._asked.num_concurrency)
        return summed(row, self._meeting.share(told))


def cells(row: Row) -> list[str]:
    """Return a line of the table; the total is of an iteration, as in the original."""
    return [
        row.engine,
        str(row.channels),
        f"{row.size:,}",
        f"{row.size * row.concurrency:,}",
        str(row.concurrency),
        f"{row.latency:.3f}",
        f"{row.bandwidth:.3f}",
        *output.columns(row),
    ]


def report(asked: argparse.Namespace, rows: list[Row], without: dict[str, str]) -> None:
    """Print and write, at rank 0."""
    screen = output.Screen(HEADERS, False)
    drawn: dict[str, plots.Curve] = {}
    for row in sorted(rows, key=lambda row: asked.backends.index(row.engine)):
        screen.row(cells(row))
        drawn.setdefault(row.engine, []).append((row.size, row.bandwidth, row.latency))
        if row.error:
            print(f"wrong bytes by {row.engine}: {row.error}", flush=True)
    output.conclude(screen, asked, [row.as_dict() for row in rows], without)
    if asked.plot:
        plots.curves(asked.plot, "Sends and receives", drawn)


def run(asked: argparse.Namespace, sizes: list[int], meeting: StoreMeeting) -> int:
    """Measure all backends; return the exit status."""
    device = options.device_of(asked.device, int(os.environ.get("LOCAL_RANK", "0")))
    mine = {name: missing(name, device) for name in asked.backends}
    everyone = meeting.share(mine)
    without = {n: next(filter(None, (one[n] for one in everyone)), "") for n in asked.backends}
    without = {name: reason for name, reason in without.items() if reason}
    for name, reason in without.items():
        output.say(f"without {name}: {reason}", meeting.rank == 0)
    names = [name for name in asked.backends if name not in without]
    if not names:
        return BAD_INPUT
    memory = Memory(max(sizes), asked.memory << 20, device)
    bench = Bench(asked, meeting, memory, names)
    rows: list[Row] = []
    with output.Screen(HEADERS, meeting.rank == 0) as screen:
        for size in sizes:
            rows += bench.rows(size, screen)
    if meeting.rank == 0:
        report(asked, rows, without)
    meeting.barrier()
    dist.destroy_process_group()
    return WRONG_BYTES if any(row.error for row in rows) else 0


def main() -> int:
    """Measure as the command line says."""
    made = parser()
    asked = made.parse_args()
    try:
        sizes = checked(asked)
        with of_torchrun("sendrecv") as meeting:
            return run(asked, sizes, meeting)
    except UsageError as error:
        made.refuse(error)


if __name__ == "__main__":
    sys.exit(main())
