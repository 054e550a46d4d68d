r"""One-sided reads between two processes of one host: dlslime, NIXL and Mooncake in one run.

    pip install --no-deps --target /tmp/wheels nixl nixl-cu12 mooncake-transfer-engine-non-cuda
    python benchmarks/transfers.py --wheels /tmp/wheels --json out.json

The libraries' wheels are kept apart from the environment, since they bring libraries of their own.
One that can't be loaded is left out, and said so. All live in the same two processes; rounds take
turns; what has been read is checked after each round. The exit status says whether it was right.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

import report
from report import Figure, at_least, at_most, summary

PAGE = 16 << 10
PAGES = 2048
LARGE = 128 << 20
SMALL = 4096
SMALL_READS = 2000
SUBMITTED = 100_000
MEMORY = 2 * LARGE
CHUNK = 1 << 20  # made, and checked, at a time
ROUNDS = 9

Exchange = Callable[[Any], Any]  # gives the other process something, and returns what it gave
Go = Callable[[], None]  # one read, from its post to its end
Piece = tuple[int, int]  # offset, the same at both ends, and bytes


class Ours:
    """dlslime."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange) -> None:
        import dlslime_backend as dlslime

        self._region = dlslime.register(memory, "memory")
        self._endpoint = dlslime.Endpoint()
        address, exported = exchange((self._endpoint.address, self._region.export()))
        self._endpoint.connect(address)
        self._remote = dlslime.import_region(exported)

    def prepare(self, pieces: list[Piece]) -> Go:
        """Returns what reads these pieces."""
        if len(pieces) == 1:
            batch: Any = [(pieces[0][0], *pieces[0])]
        else:
            pages = torch.tensor([offset // PAGE for offset, _ in pieces])
            batch = (pages, pages, PAGE)
        read, local, remote = self._endpoint.read, self._region, self._remote
        return lambda: read(local, remote, batch).wait()

    def submit(self, count: int) -> float:
        """Returns the seconds it takes to post so many scattered pieces of 2 KiB."""
        small = 2048
        here = torch.randperm(count) * small
        there = torch.randperm(count) * small
        lengths = torch.full((count,), small)
        start = time.perf_counter()
        transfer = self._endpoint.read(self._region, self._remote, (here, there, lengths))
        posted = time.perf_counter()
        transfer.wait()
        return posted - start


class Nixl:
    """NIXL with its UCX backend, of handles made beforehand, as it is meant to be used."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        name = f"agent {os.getpid()}"
        self._agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self._base = memory.data_ptr()
        self._agent.register_memory([(self._base, memory.nbytes, 0, "")], "DRAM")
        metadata, self._there = exchange((self._agent.get_agent_metadata(), self._base))
        self._peer = self._agent.add_remote_agent(metadata)

    def prepare(self, pieces: list[Piece]) -> Go:
        """Returns what reads these pieces."""
        agent = self._agent
        local = [(self._base + offset, size, 0) for offset, size in pieces]
        remote = [(self._there + offset, size, 0) for offset, size in pieces]
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", local, "DRAM")
        there = agent.prep_xfer_dlist(self._peer, remote, "DRAM")
        every = list(range(len(pieces)))
        handle = agent.make_prepped_xfer("READ", here, every, there, every)

        def go() -> None:
            state = agent.transfer(handle)
            while state != "DONE":
                assert state == "PROC", state
                state = agent.check_xfer_state(handle)

        return go


class Mooncake:
    """Mooncake's transfer engine over TCP, as its wheel has it."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange) -> None:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        assert self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self._base = memory.data_ptr()
        assert self._engine.register_memory(self._base, memory.nbytes) == 0
        port, self._there = exchange((self._engine.get_rpc_port(), self._base))
        self._peer = f"127.0.0.1:{port}"

    def prepare(self, pieces: list[Piece]) -> Go:
        """Returns what reads these pieces."""
        local = [self._base + offset for offset, _ in pieces]
        remote = [self._there + offset for offset, _ in pieces]
        sizes = [size for _, size in pieces]
        read, peer = self._engine.batch_transfer_sync_read, self._peer

        def go() -> None:
            status = read(peer, local, remote, sizes)
            assert status == 0, status

        return go


LIBRARIES: dict[str, Callable[[torch.Tensor, Exchange], Any]] = {
    "ours": Ours,
    "nixl": Nixl,
    "mooncake": Mooncake,
}

OTHERS = [name for name in LIBRARIES if name != "ours"]


def _load(
    memory: torch.Tensor, pipe: Connection, names: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Both processes load the libraries in turn; one that fails at either is left out."""
    exchanged: list[str] = []  # by which of them: each does so once

    def exchange(value: Any) -> Any:
        exchanged.append(name)
        pipe.send(value)
        return pipe.recv()

    loaded: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            loaded[name] = LIBRARIES[name](memory, exchange)
            problem = ""
        except Exception as error:  # noqa: BLE001 - of a library that we only compare with
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            if name not in exchanged:
                exchange(None)
        theirs = exchange(problem)
        if problem or theirs:
            loaded.pop(name, None)
            missing[name] = problem or theirs
    return loaded, missing


def _idle() -> Figure:
    """What this process's threads use when nothing goes on."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    time.sleep(3)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    share = 100 * used / (time.perf_counter() - start)
    target = at_most(share / 0.5, 1.0) | {"target": "<= 0.5%"}
    return Figure("idle", "with dlslime alone", "% cpu", share, None, **target)


class Bench:
    """The process that reads."""

    def __init__(self, loaded: dict[str, Any], memory: torch.Tensor, rounds: int) -> None:
        self._loaded = loaded
        self._memory = memory
        self._rounds = rounds

    def times(self, pieces: list[Piece], count: int) -> dict[str, list[float]]:
        """Microseconds a read: medians of rounds, by library."""
        ways = {name: library.prepare(pieces) for name, library in self._loaded.items()}
        samples: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        for number in range(self._rounds + 1):
            for name in order:
                for offset, size in pieces:
                    self._memory[offset : offset + size] = 0
                taken = []
                for _ in range(count):
                    start = time.perf_counter()
                    ways[name]()
                    taken.append((time.perf_counter() - start) * 1e6)
                self._check(name, pieces)
                if number > 0:  # the first warms up
                    samples[name].append(median(taken))
            order = order[1:] + order[:1]
        return samples

    def _check(self, name: str, pieces: list[Piece]) -> None:
        for offset, size in pieces:
            for at in range(offset, offset + size, CHUNK):
                chunk = self._memory[at : min(at + CHUNK, offset + size)]
                if not torch.equal(chunk, contents(at, chunk.numel())):
                    raise AssertionError(f"{name} has read wrong bytes at {at}")

    def against(self, part: str, name: str, factor: float, **what: Any) -> list[Figure]:
        """Figures of one kind of read, against each other library."""
        samples = {library: summary(taken) for library, taken in self.times(**what).items()}
        ours = samples["ours"]["median"]
        figures = []
        for library, entry in samples.items():
            if library != "ours":
                theirs = entry["median"]
                target = at_least(theirs / ours, factor)
                label = f"{name}, {library}"
                figures.append(Figure(part, label, "us", ours, theirs, **target, details=samples))
        return figures


def contents(offset: int, size: int) -> torch.Tensor:
    """What the other process has at a place: differs from page to page, and within one."""
    at = torch.arange(offset, offset + size)
    return ((at + at // PAGE * 7 + at // 251) % 251).to(torch.uint8)


def _figures(bench: Bench, ours: Any) -> list[Figure]:
    pages = [(int(page) * PAGE, PAGE) for page in torch.randperm(MEMORY // PAGE)[:PAGES]]
    figures = bench.against("small", "4 KiB", 1.0, pieces=[(0, SMALL)], count=SMALL_READS)
    figures += bench.against("pages", "2,048 x 16 KiB", 3.0, pieces=pages, count=3)
    figures += bench.against("large", "128 MiB", 1.5, pieces=[(0, LARGE)], count=3)
    posted = summary([ours.submit(SUBMITTED) * 1e3 for _ in range(ROUNDS)])
    limit = 10.0
    target = at_most(posted["median"] / limit, 1.0) | {"target": "<= 10 ms"}
    figures.append(
        Figure(
            "submit",
            "100,000 pieces of 2 KiB",
            "ms",
            posted["median"],
            limit,
            **target,
            details=posted,
        )
    )
    return figures


def _target(pipe: Connection, wheels: str) -> None:
    sys.path.append(wheels)
    memory = torch.cat([contents(at, CHUNK) for at in range(0, MEMORY, CHUNK)])
    kept = [_load(memory, pipe, ["ours"]), _load(memory, pipe, OTHERS)]
    pipe.recv()
    del kept
    os._exit(0)  # some of these libraries crash when they are unloaded


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", default="", help="folder with the other libraries")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, default=report.HERE / "results" / "transfers.json")
    options = parser.parse_args()
    sys.path.append(options.wheels)
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_target, args=(theirs, options.wheels))
    process.start()
    memory = torch.zeros(MEMORY, dtype=torch.uint8)
    loaded, missing = _load(memory, pipe, ["ours"])
    if missing:
        raise RuntimeError(missing["ours"])
    loaded["ours"].prepare([(0, SMALL)])()
    idle = _idle()
    others, missing = _load(memory, pipe, OTHERS)
    loaded |= others
    for name, problem in missing.items():
        print(f"without {name}: {problem}")
    figures = [*_figures(Bench(loaded, memory, options.rounds), loaded["ours"]), idle]
    for figure in figures:
        print(report.line(figure))
    report.save(options.json, report.environment() | {"missing": missing}, figures, [])
    pipe.send("over")
    process.join()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
