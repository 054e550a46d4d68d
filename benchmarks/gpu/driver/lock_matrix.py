"""Driver calls that wait while a stream waits for a processor, and the calls held up by them.

    python benchmarks/gpu/driver/lock_matrix.py

A stream is held by a word not yet set. A thread makes a call (a row), four other threads make the
calls that the engine would need to set the stream free (the columns); then the word is set. The
settings are kernels loaded late or early, torch's default stream instead of a separate stream, and
one hardware queue, each in a process of its own. The word lies in memory shared with the parent,
which sets the word if the process can't. Answers: "lock.LOADING.SETTING.ROW"; docs/cuda.md gives
their meaning.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.driver import rows, sharing
from gpu.driver.lock_worker import work
from gpu.runner.findings import Findings

LEGACY = "legacy"  # torch's default stream is held, which other streams may wait for
FEW = ["nothing", "late_launch", "cpu", "malloc", "free", "module_load", "map"]
SETTINGS = [("LAZY", "8"), ("EAGER", "8"), ("LAZY", LEGACY), ("EAGER", LEGACY), ("LAZY", "1")]
RESCUE_S = 4.0  # until the parent sets the word
# For torch's import, and for kernels all loaded early; longer without a GPU on a busy machine.
START_S = 40.0 if rows.REAL else 120.0


class Setting:
    """A way of loading kernels, with a number of hardware queues, or with the default stream."""

    def __init__(self, loading: str, queues: str) -> None:
        self.prefix = f"lock.{loading}.{queues}."
        self._legacy = queues == LEGACY
        connections = "8" if self._legacy else queues
        self._environ = {"CUDA_MODULE_LOADING": loading, "CUDA_DEVICE_MAX_CONNECTIONS": connections}
        names = list(rows.ROWS) if queues == "8" else [name for name in FEW if name in rows.ROWS]
        self._rest = ["streams", *names]
        self._words = sharing.Words()

    def run(self) -> None:
        """Run all rows; after a row that ends or hangs the process, run the rest in another."""
        while self._rest:
            before = len(self._rest)
            self._attempt()
            if len(self._rest) == before:
                left_out = ", ".join(self._rest)
                self._answer("error", f"no process began, or ended; left out: {left_out}")
                return

    def _attempt(self) -> None:
        self._words.store(0, 0)
        stream = LEGACY if self._legacy else "own"
        command = [sys.executable, sys.argv[0], str(self._words.file), stream, *self._rest]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environ},
            pass_fds=(self._words.file,),
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        try:
            self._follow(process)
        finally:
            process.kill()
            self._wait(process)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Read the process's lines until the process ends or is stuck for good."""
        assert process.stdout is not None
        text, current, rescued, patience_s = b"", "", False, START_S
        while True:
            ready, _, _ = select.select([process.stdout], [], [], patience_s)
            if not ready and current and not rescued:
                self._words.store(0, 0x7FFFFFFF)  # frees any waiting row
                rescued, patience_s = True, RESCUE_S
                continue
            more = process.stdout.read() if ready else b""
            if not more:
                self._lost(process, current, hangs=not ready)
                return
            *lines, text = (text + more).split(b"\n")
            for said in self._understood(lines):
                patience_s = RESCUE_S * (3 if said.get("begin") in rows.PATIENCE else 1)
                current = said.get("begin", "")
                if "row" in said:
                    self._done(said["row"], {**said["found"], **self._note(rescued)})
                    if rescued:
                        return  # the word stays set: the rest in another process

    @staticmethod
    def _understood(lines: list[bytes]) -> list[dict[str, Any]]:
        """Return the worker's lines among the lines printed by libraries."""
        return [json.loads(line) for line in lines if line.startswith(b'{"')]

    @staticmethod
    def _note(rescued: bool) -> dict[str, Any]:
        return {"rescued": True} if rescued else {}

    def _lost(self, process: subprocess.Popen[bytes], row: str, *, hangs: bool) -> None:
        if not row:
            return
        text = "hangs though the stream was let go"
        if not hangs:
            text = f"its process died ({self._wait(process)})"
        self._done(row, {"error": text})

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int | None:
        """Return the exit status of a process; None if the driver prevents the end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(5)
        return None

    def _done(self, name: str, found: dict[str, Any]) -> None:
        self._answer(name, found)
        if name in self._rest:
            self._rest.remove(name)

    def _answer(self, name: str, found: dict[str, Any] | str) -> None:
        Findings(self.prefix).answer(**{name: found})


def main() -> int:
    """Run every setting; damage by a row to its process is an answer, and no failure."""
    for loading, queues in SETTINGS:
        begin = time.monotonic()
        Setting(loading, queues).run()
        print(f"   {loading}, {queues}: {time.monotonic() - begin:.1f} s", flush=True)
    return 0


def program() -> int:
    """Act as a peer, a worker, or the parent of all, as the command line says."""
    if sharing.peer_main() is None and len(sys.argv) > 1:
        work(int(sys.argv[1]), sys.argv[3:], legacy=sys.argv[2] == LEGACY)
    return main()


if __name__ == "__main__":
    sys.exit(program())
