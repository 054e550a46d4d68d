"""Two ranks that try a pair for real, for `doctor` and `bench`: run as a program by them.

    python -m dlslime_backend.cli.pair RANK HOST:PORT SECONDS [--bench]

Prints a line of JSON for each thing found out. The store listens at HOST:PORT in rank 0.
"""

import argparse
import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import IO, Any, NamedTuple

import torch
import torch.distributed as dist

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
_WARM_UP = 3
# A rank searches for modules where this process does, which may not search its folder (python -P).
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module('dlslime_backend.cli.pair', run_name='__main__', alter_sys=True)"
)


class Place(NamedTuple):
    """Where rank 0's store listens."""

    host: str
    port: int


def parse_place(text: str, host: str = "") -> Place:
    """Parse HOST:PORT; `host` stands in where only a port is given.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    name, _, port = text.rpartition(":")
    name = (name or host).strip("[]")
    if not name or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return Place(name, int(port))


def free_port() -> int:
    """Return a TCP port of this host that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tell(**facts: object) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def one_way(group: Any, peer: int, size: int, seconds: float) -> float:
    """Return the median one-way time of a message, in seconds, by a ping-pong."""
    first = dist.get_rank() == 0
    data = torch.zeros(size, dtype=torch.uint8)
    times: list[float] = []
    turn = [dist.send, dist.recv] if first else [dist.recv, dist.send]

    def round_trip() -> None:
        for call in turn:
            call(data, peer, group=group)

    for _ in range(_WARM_UP):
        round_trip()
    count = torch.ones(1, dtype=torch.int64)
    if first:
        start = time.perf_counter()
        round_trip()
        each = time.perf_counter() - start
        count[0] = max(5, min(20_000, int(seconds / max(each, 1e-6))))
        dist.send(count, peer, group=group)
    else:
        round_trip()
        dist.recv(count, peer, group=group)
    for _ in range(int(count)):
        start = time.perf_counter()
        round_trip()
        times.append((time.perf_counter() - start) / 2)
    return sorted(times)[len(times) // 2]


def measure(backends: list[str], seconds: float) -> None:
    """Tell the one-way time of each size by each backend."""
    groups = {name: dist.new_group(backend=name) for name in backends}
    peer = 1 - dist.get_rank()
    share = seconds / len(SIZES) / len(backends)
    for size in SIZES:
        for name, group in groups.items():
            took = one_way(group, peer, size, share)
            if dist.get_rank() == 0:
                tell(size=size, backend=name, seconds=took)


def run(rank: int, place: Place, seconds: float, bench: bool) -> None:
    """Connect as rank 0 or 1, tell the route, and measure."""
    from dlslime_backend import explain

    limit = timedelta(seconds=seconds)
    host = "0.0.0.0" if rank == 0 and place.host != "127.0.0.1" else place.host  # noqa: S104
    store = dist.TCPStore(
        host, place.port, 2, is_master=rank == 0, timeout=limit, wait_for_workers=False
    )
    dist.init_process_group("dlslime", store=store, rank=rank, world_size=2, timeout=limit)
    tell(route=explain(1 - rank))
    measure(["dlslime", "gloo"] if bench else ["dlslime"], 10.0 if bench else 1.5)
    dist.barrier()
    tell(done=True)
    dist.destroy_process_group()


def command(rank: int, place: Place, seconds: float, bench: bool = False) -> list[str]:
    """Return the command of one rank."""
    name = f"{place.host}:{place.port}"
    start = [sys.executable, "-P", "-c", _START, json.dumps(sys.path)]
    made = [*start, str(rank), name, f"{seconds:g}"]
    return [*made, *(["--bench"] if bench else [])]


Heard = dict[str, Any]


class Rank(NamedTuple):
    """A process that is one rank, and the file with what it prints on stderr."""

    process: subprocess.Popen[str]
    errors: IO[str]


def watch(rank: Rank, on_line: Callable[[Heard], None] = lambda _: None) -> Heard:
    """Read a rank's lines until it ends, and return them together.

    Returns:
        "route", from explain; "times": a list of dicts; "done"; "error": the last lines on stderr
        if the rank failed.
    """
    heard: Heard = {"times": []}
    for fact in _facts(rank.process):
        on_line(fact)
        if "size" in fact:
            heard["times"].append(fact)
        else:
            heard.update(fact)
    if rank.process.wait() != 0 or not heard.get("done"):
        rank.errors.seek(0)
        lines = [line for line in rank.errors.read().splitlines() if line.strip()]
        heard["error"] = _reason(lines)
    return heard


def _facts(process: subprocess.Popen[str]) -> Iterator[Heard]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def _reason(lines: list[str]) -> str:
    # A traceback's last line that names an exception; torch appends a C++ stack after it, and puts
    # the rank before each line.
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines]
    named = [line for line in lines if re.match(r"[\w.]*Error: ", line)]
    return named[-1].partition(": ")[2] if named else (lines[-1] if lines else "it said nothing")


def _kill(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.process.kill()


@contextlib.contextmanager
def started(
    numbers: list[int], place: Place, seconds: float, bench: bool = False
) -> Iterator[list[Rank]]:
    """Start ranks as processes, and end them afterwards, or when they take far too long."""
    ranks: list[Rank] = []
    end = threading.Timer(2 * seconds + 60, _kill, [ranks])
    try:
        for number in numbers:
            errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed below)
            made = command(number, place, seconds, bench)
            process = subprocess.Popen(made, stdout=subprocess.PIPE, stderr=errors, text=True)
            ranks.append(Rank(process, errors))
        end.start()
        yield ranks
    finally:
        end.cancel()
        _kill(ranks)
        for rank in ranks:
            rank.process.wait()
            rank.errors.close()


def try_here(
    seconds: float = 30.0, bench: bool = False, on_line: Callable[[Heard], None] = lambda _: None
) -> list[Heard]:
    """Try a pair of two processes on this host, and return what the two have told."""
    with started([0, 1], Place("127.0.0.1", free_port()), seconds, bench) as ranks:
        return [watch(ranks[0], on_line), watch(ranks[1])]


def main() -> None:
    """Run one rank by the command line."""
    parser = argparse.ArgumentParser(description="One rank of a pair.")
    parser.add_argument("rank", type=int, choices=(0, 1))
    parser.add_argument("place", type=parse_place)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--bench", action="store_true")
    options = parser.parse_args()
    run(options.rank, options.place, options.seconds, options.bench)


if __name__ == "__main__":
    main()
