"""Programs in broken set-ups: the ranks of a job, and the doctor.

Each rank is a program of its own, started with the variables of torchrun. The job keeps its default
time-out of half an hour, so an error within the limits below is not the time-out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness import PATIENCE
from nodes import free_port
from polling import eventually

SOON = 60 * PATIENCE  # seconds for a job that should fail or end at once, on a busy machine
JOB = """
import os, torch, torch.distributed as dist
dist.init_process_group("dlslime")
print("begun", flush=True)
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(300_000)
if os.environ.get("FIRST") != "collective":
    for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        call(tensor, size - 1 - rank)
dist.all_reduce(tensor)
assert tensor.tolist()[:2] == [size] * 2
print("worked", flush=True)
dist.destroy_process_group()
"""


class Rank:
    """One program of a job.

    Args:
        number: the rank.
        port: of the store, hosted by rank 0.
        env: variables beside the usual, which are those of a job of two ranks.
        program: what the rank runs.
        options: of the interpreter.
        begin: called in the process before the interpreter starts.
    """

    def __init__(
        self,
        number: int,
        port: int,
        env: Mapping[str, str],
        *,
        program: str = JOB,
        options: Sequence[str] = (),
        begin: Callable[[], None] | None = None,
    ) -> None:
        usual = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        self.process = subprocess.Popen(
            [sys.executable, *options, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",  # the installed package is the subject
            env={**os.environ, **usual, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **env},
            preexec_fn=begin,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.append(line)  # seen at once

    @property
    def output(self) -> str:
        """The output so far."""
        return "".join(self._lines)

    def says(self, seconds: float = SOON) -> str:
        """Return all output, once the program has ended; fail if it does not end in time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s:\n{self.output}") from None
        self._reader.join()
        return self.output

    def comes_to_say(self, text: str, seconds: float = SOON) -> str:
        """Return the line with the text once the program, which goes on, has written the line."""
        found: list[str] = []

        def said() -> bool:
            found.extend(line for line in self._lines if text in line)
            return bool(found)

        try:
            eventually(said, seconds)
        except AssertionError:
            raise AssertionError(f"no {text!r} after {seconds} s:\n{self.output}") from None
        return found[0]

    def end(self) -> None:
        """Kill the program if it runs, and wait for the end of its output."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextlib.contextmanager
def job(*ranks: dict[str, Any], port: int | None = None) -> Iterator[list[Rank]]:
    """Run a job of ranks from 0 on, two unless WORLD_SIZE is set, from the arguments of each.

    At the end, what is left is killed.
    """
    port = port or free_port()
    made = [Rank(i, rank.pop("port", port), rank.pop("env", {}), **rank) for i, rank in
            enumerate(ranks)]  # fmt: skip
    try:
        yield made
    finally:
        for rank in made:
            rank.end()


def doctor(
    *arguments: str,
    begin: Callable[[], None] | None = None,
    **env: str,
) -> dict[str, dict[str, str]]:
    """Return the doctor's findings by the name of the check."""
    done = subprocess.run(
        [sys.executable, "-m", "dlslime_backend", "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * SOON,
        check=False,
        cwd="/",
        env={**os.environ, **env},
        preexec_fn=begin,
    )
    assert done.stdout, done.stderr
    return {finding["check"]: finding for finding in json.loads(done.stdout)}


def expect_problem(finding: dict[str, str], text: str, remedy: str) -> None:
    assert finding["level"] == "problem", finding
    assert text in finding["text"], finding
    assert remedy in finding["remedy"], finding
