"""Which driver calls wait while a stream waits for a processor, and which others they hold up.

    python benchmarks/gpu/lock_matrix.py

A stream is held by a word that nobody has set yet. One thread makes a call (a row), four others
make the calls that our engine would need to set the stream free (the columns), over and over; then
the word is set. It is done with kernels loaded late and early, and with one and eight hardware
queues, each in a process of its own. The word lies in memory shared with the parent, which sets it
where the process can't. Answers: "lock.LOADING.QUEUES.ROW"; docs/cuda.md says what they mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.driver import rows, sharing
from gpu.driver.api import Driver, DriverError
from gpu.runner.results import Findings

LOADING = ("LAZY", "EAGER")
QUEUES = ("8", "1")
STREAMS = 40
QUICK = os.environ.get("DLSLIME_TEST_GPUS") != "real"  # the fake driver is as slow everywhere
WINDOW_S = 0.12 if QUICK else 0.25  # for which a row's calls are watched
BLOCKED_S = WINDOW_S / 2  # a call that takes longer is held up
RESCUE_S = 4.0  # after which the parent sets the word
START_S = 40.0  # for torch's import, and for kernels that are all loaded early


# --- the worker: one setting, row by row ----------------------------------------------------------


class Column:
    """A call that is made over and over on a thread of its own."""

    def __init__(self, cuda: Driver, call: Callable[[], Any], over: threading.Event) -> None:
        self.longest_s = 0.0
        self._began: float | None = None
        self._cuda, self._call, self._over = cuda, call, over
        self.error = ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._cuda.enter()
            while not self._over.is_set():
                self._began = time.monotonic()
                self._call()
                self.longest_s = max(self.longest_s, time.monotonic() - self._began)
                self._began = None
                time.sleep(0.0005)
        except Exception as error:  # noqa: BLE001 - it is the answer
            self.error = str(error)
            self._began = None

    def verdict(self) -> str | float:
        """Say how long the longest call took, in ms, or that one does not return."""
        if self.error:
            return self.error
        began = self._began
        now_s = 0.0 if began is None else time.monotonic() - began
        if now_s > BLOCKED_S:
            return "blocked"
        return round(max(self.longest_s, now_s) * 1e3, 2)


class Worker:
    """A process with a stream to hold, forty others, and the columns' calls."""

    def __init__(self, file: int) -> None:
        sharing.tensor(16)  # torch makes the context, as in a program
        self.cuda = Driver()
        self.words = sharing.Words(file)
        self.words.register(self.cuda)
        self.streams = [self.cuda.stream() for _ in range(STREAMS)]
        self.held = rows.new_stream()
        self.source, self.target = self.cuda.allocate(1 << 20), self.cuda.allocate(1 << 20)
        self.turn = 0
        for stream in self.streams:  # each has its hardware queue from now on
            self.cuda.copy(self.target, self.source, 4096, stream)
            self.cuda.settle(stream)
        self.event = self.cuda.event()
        self.cuda.call("cuEventRecord", self.event, self.streams[0])
        for column in self.columns().values():  # what a first call makes is made
            with contextlib.suppress(DriverError, AttributeError):
                column()

    def hold(self) -> None:
        """Let the stream wait for the word's next value."""
        self.turn += 1
        raw = rows.raw(self.held)
        self.cuda.call("cuStreamWaitValue32_v2", raw, self.words.device, self.turn, 0)

    def release(self) -> None:
        """Set the word."""
        self.words.store(0, self.turn)

    def columns(self) -> dict[str, Callable[[], Any]]:
        """What our engine calls while a stream waits."""
        cuda = self.cuda
        query = cuda.function("cuEventQuery")
        word = self.words.device + 8
        batch = rows.Batch(cuda, self.target, self.source, self.streams[3])
        return {
            "event_query": lambda: query(self.event),
            "write_value": lambda: cuda.call(
                "cuStreamWriteValue32_v2", self.streams[1], word, 1, 0
            ),
            "copy": lambda: cuda.copy(self.target, self.source, 4096, self.streams[2]),
            "batch": batch.enqueue,
        }

    def streams_that_move(self) -> int:
        """Count the streams whose copies end while the held one waits (shared queues)."""
        self.hold()
        events = []
        for stream in self.streams:
            self.cuda.copy(self.target, self.source, 4096, stream)
            events.append(self.cuda.event())
            self.cuda.call("cuEventRecord", events[-1], stream)
        end = time.monotonic() + 2 * WINDOW_S
        moved = sum(self.cuda.within(max(0.0, end - time.monotonic()), each) for each in events)
        self.release()
        return moved

    def row(self, name: str) -> dict[str, Any]:
        """Hold the stream, make the row's call, and watch the columns."""
        row = rows.ROWS[name](self)
        self.hold()
        over = threading.Event()
        ended: list[float] = []
        error: list[str] = []
        begin = time.monotonic()

        def call() -> None:
            try:
                self.cuda.enter()
                with rows.current(self.held):
                    row()
            except Exception as failure:  # noqa: BLE001 - it is the answer
                error.append(f"{type(failure).__name__}: {failure}")
            ended.append(time.monotonic() - begin)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        watched = {key: Column(self.cuda, each, over) for key, each in self.columns().items()}
        window_s = WINDOW_S * rows.PATIENCE.get(name, 1)
        thread.join(window_s)
        time.sleep(BLOCKED_S * 1.2)  # so that a column that is blocked shows it
        found: dict[str, Any] = {key: each.verdict() for key, each in watched.items()}
        found["returns_ms"] = round(ended[0] * 1e3, 2) if ended else "when the stream goes on"
        over.set()
        self.release()
        for each in (thread, *(column.thread for column in watched.values())):
            each.join(2)
        if error:
            found["error"] = error[0]
        self.cuda.within(2, self._behind_all())
        return found

    def _behind_all(self) -> int:
        mark = self.cuda.event()
        self.cuda.call("cuEventRecord", mark, rows.raw(self.held))
        return mark


def work(file: int, names: list[str]) -> None:
    """Do the rows, and print each before it is begun and when it is over."""
    worker = Worker(file)
    print(json.dumps({"ready": True}), flush=True)
    moved = worker.streams_that_move()
    print(json.dumps({"row": "streams", "found": {"move": moved, "of": STREAMS}}), flush=True)
    for name in names:
        print(json.dumps({"begin": name}), flush=True)
        try:
            found = worker.row(name)
        except Exception as error:  # noqa: BLE001 - one row's failure is its answer
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"row": name, "found": found, "turn": worker.turn}), flush=True)
    os._exit(0)  # what is broken by now may keep the driver from ending


# --- the parent -----------------------------------------------------------------------------------


class Setting:
    """One way of loading kernels, with so many hardware queues."""

    def __init__(self, loading: str, queues: str) -> None:
        self.prefix = f"lock.{loading}.{queues}."
        self._environ = {"CUDA_MODULE_LOADING": loading, "CUDA_DEVICE_MAX_CONNECTIONS": queues}
        self._rest = list(rows.ROWS)
        self._words = sharing.Words()

    def run(self) -> None:
        """Run all rows; after one at which the process ends or hangs, the rest in another."""
        while self._rest:
            if not self._attempt():
                self._answer("error", f"no process began, or ended; left out: {self._rest}")
                return

    def _attempt(self) -> bool:
        """Run the rows that are left in one process; tell whether it came to one of them."""
        before = len(self._rest)
        self._words.store(0, 0)
        command = [sys.executable, sys.argv[0], str(self._words.file), *self._rest]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environ},
            pass_fds=(self._words.file,),
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._follow(process)
        process.kill()
        process.wait(5)
        return len(self._rest) < before

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Take what the process says, until it ends or is stuck for good."""
        assert process.stdout is not None
        text, current, rescued, patience_s = b"", "", False, START_S
        while True:
            ready, _, _ = select.select([process.stdout], [], [], patience_s)
            if not ready:
                if rescued or not current:
                    if current:
                        self._done(current, {"error": "hangs though the stream was let go"})
                    return
                self._words.store(0, 0x7FFFFFFF)  # whatever the row waits for
                rescued, patience_s = True, RESCUE_S
                continue
            more = process.stdout.read()
            if not more:
                if current:
                    self._done(current, {"error": f"its process died ({process.wait()})"})
                return
            text += more
            *lines, text = text.split(b"\n")
            for line in lines:
                said = json.loads(line)
                patience_s = RESCUE_S * (2 if said.get("begin") in rows.PATIENCE else 1)
                current = said.get("begin", "")
                if "row" in said:
                    more_found = {"rescued": True} if rescued else {}
                    self._done(said["row"], {**said["found"], **more_found})
                    if rescued:
                        return  # the word stays set: the rest in another process

    def _done(self, name: str, found: dict[str, Any]) -> None:
        self._answer(name, found)
        if name in self._rest:
            self._rest.remove(name)

    def _answer(self, name: str, found: dict[str, Any] | str) -> None:
        Findings(self.prefix).answer(**{name: found})


def main() -> int:
    """Do every setting; return 1 where a row could not be done, which may be the driver's doing."""
    for queues in QUEUES:
        for loading in LOADING:
            Setting(loading, queues).run()
    return 0


def program() -> int:
    """Be what the command line says: a peer, a worker, or the parent of all."""
    if sharing.peer_main() is None and len(sys.argv) > 1:
        work(int(sys.argv[1]), sys.argv[2:])
    return main()


if __name__ == "__main__":
    sys.exit(program())
