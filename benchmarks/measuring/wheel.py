"""The original DLSlime, of PyPI's `dlslime` wheel, in its own process beside a benchmark's.

Two of the library's threads poll without a pause from the moment of connecting on, at both ends: in
a separate process the threads can be stopped while other libraries are measured. `Wheel` starts
this file with

    python benchmarks/measuring/wheel.py FOLDER BYTES source|sink

Lines of JSON come by the standard input and are answered by the standard output:

    (nothing)                                                 {"info": {...}}, for the other end
    {"info": {...}}, the other end's                          {"connected": true}
    {"pieces": [[offset, bytes]], "count": 3, "seconds": 2}   {"times": [microseconds]}

The pieces are at equal offsets at both ends. Wrong data ends the process with status 1.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Pieces = list[tuple[int, int]]  # offset and bytes
Exchange = Callable[[str], str]  # gives the other rank a text, and returns that rank's text

PATTERN = bytes(range(251))  # a prime: bytes from a wrong place differ
NAME = "memory"
PATIENCE = 60.0  # seconds for an answer


def contents(size: int) -> bytes:
    """Return the source's bytes: each byte is its offset modulo 251."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


class Wheel:
    """An end of the library, as the benchmark sees it; stopped, except in `run`."""

    def __init__(self, folder: str, size: int, reads: bool, exchange: Exchange) -> None:
        role = "sink" if reads else "source"
        command = [sys.executable, __file__, folder, str(size), role]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reads = reads
        self._exchange = exchange
        mine = self._answer()
        theirs = json.loads(exchange(json.dumps(mine)))
        good = str(bool(mine and theirs and self._ask(theirs)))
        self.missing = "" if exchange(good) == good == "True" else "does not load, or not connect"
        self._process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        """Return {} if the process has ended, or does not answer in time."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            self._process.kill()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or b"{}")
        return answer

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self, pieces: Pieces, count: int, seconds: float) -> list[float]:
        """Return the microseconds of each read, at the end that reads; both ends call.

        The list is empty once the library did not answer, see `missing`.

        Raises:
            RuntimeError: the library has read wrong data, or failed.
        """
        if self.missing:
            return []
        self._process.send_signal(signal.SIGCONT)
        self._exchange("")
        answer: dict[str, Any] = {}
        if self._reads:
            answer = self._ask({"pieces": pieces, "count": count, "seconds": seconds})
        ended = self._process.wait() if self._reads and not answer else 0
        statuses = [ended, int(self._exchange(str(ended)))]
        if max(statuses) > 0:
            raise RuntimeError("the wheel has failed, or read wrong data")
        if min(statuses) < 0:
            self.missing = f"did not answer within {PATIENCE:g} s"
        self._process.send_signal(signal.SIGSTOP)
        return answer.get("times", [])

    def close(self) -> None:
        """End the library's process."""
        self._process.kill()


class End:
    """The library's endpoint, and its memory, in its process."""

    def __init__(self, size: int, source: bool) -> None:
        import dlslime

        self._memory = mmap.mmap(-1, size)
        self._memory[:] = contents(size) if source else bytes(size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._endpoint = dlslime.RDMAEndpoint(device_name=dlslime.available_nic()[0])
        self._here = self._endpoint.register_memory_region(NAME, address, 0, size)
        self._there = 0

    def info(self) -> dict[str, Any]:
        """Return the argument for the other end's `connect`."""
        info: dict[str, Any] = self._endpoint.endpoint_info()
        return info

    def connect(self, info: dict[str, Any]) -> None:
        """Connect to the other end, and get access to its memory."""
        self._endpoint.connect(info)
        self._there = self._endpoint.register_remote_memory_region(NAME, info["mr_info"][NAME])

    def times(self, pieces: Pieces, count: int, seconds: float) -> list[float]:
        """Return the microseconds of each read of all pieces; no read begins after `seconds`."""
        for offset, size in pieces:
            self._memory[offset : offset + size] = bytes(size)
        parts = [(self._here, self._there, offset, offset, size) for offset, size in pieces]
        over = time.perf_counter() + seconds
        times: list[float] = []
        while len(times) < count and (not times or time.perf_counter() < over):
            start = time.perf_counter()
            self._endpoint.read(parts).wait()
            times.append((time.perf_counter() - start) * 1e6)
        expected = contents(len(self._memory))
        for offset, size in pieces:
            if self._memory[offset : offset + size] != expected[offset : offset + size]:
                raise ValueError(f"the wheel has read wrong bytes at {offset}")
        return times


def main() -> None:
    """Answer until the input ends."""
    folder, size, role = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    sys.path.insert(0, folder)
    end = End(int(size), role == "source")
    answer(info=end.info())
    for line in sys.stdin:
        what = json.loads(line)
        if "info" in what:
            end.connect(what["info"])
            answer(connected=True)
        else:
            answer(times=end.times(**what))
    os._exit(0)  # the library's threads would go on


if __name__ == "__main__":
    main()
