"""A process of the lock matrix: a setting, row by row."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu.driver import rows, sharing
from gpu.driver.api import Batch, Driver, DriverError
from gpu.driver.sharing import say

STREAMS = 40
FAST_STREAMS = 4  # of the highest priority, as the engine's stream for copies
HIGHEST_PRIORITY = -5
QUICK = os.environ.get("DLSLIME_TEST_GPUS") != "real"  # the fake driver is equally slow everywhere
WINDOW_S = 0.12 if QUICK else 0.25  # time for watching a row's calls
BLOCKED_S = WINDOW_S / 2  # a longer call counts as held up
CALLS = 30  # of a column in a row: a stream that does not move takes some hundred
JOIN_S = 2.0
LATER = "when the stream goes on"


class Column:
    """A call made again and again on a thread of its own, some times in a row's window."""

    def __init__(self, cuda: Driver, call: Callable[[], Any], pause_s: float) -> None:
        self.error = ""
        self.calls = 0
        self._longest_s = 0.0
        self._cuda, self._call, self._pause_s = cuda, call, pause_s
        self._over = threading.Event()
        self._first = threading.Event()
        self._began: float | None = time.monotonic()  # entering the context may wait, too
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._cuda.enter()
            while self.calls < CALLS and not self._over.is_set():
                self._began = time.monotonic()
                self._call()
                self._longest_s = max(self._longest_s, time.monotonic() - self._began)
                self._began = None
                self.calls += 1
                self._first.set()
                time.sleep(self._pause_s)
        except Exception as error:  # noqa: BLE001 - the error is the answer
            self.error = str(error)
            self._began = None
            self._first.set()

    def await_first(self) -> None:
        """Wait until a call has been made, or is held up."""
        self._first.wait(BLOCKED_S)

    def stop(self) -> None:
        """Begin no further call."""
        self._over.set()

    def verdict(self) -> str | float:
        """Return the ms of the longest call, or "blocked" if a call does not return."""
        if self.error:
            return self.error
        began = self._began
        now_s = 0.0 if began is None else time.monotonic() - began
        if now_s > BLOCKED_S:
            return "blocked"
        return round(max(self._longest_s, now_s) * 1e3, 2)


class Call:
    """A row's call, on a thread of its own, by the held stream."""

    def __init__(self, worker: Worker, call: Callable[[], Any]) -> None:
        self.error = ""
        self.returned_s: float | None = None
        self._worker, self._call = worker, call
        self._begin = time.monotonic()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._worker.cuda.enter()
            with rows.current(self._worker.held):
                self._call()
        except Exception as error:  # noqa: BLE001 - the error is the answer
            self.error = f"{type(error).__name__}: {error}"
        self.returned_s = time.monotonic() - self._begin


class Worker:
    """A stream to hold, other streams beside, and the calls made by the engine.

    Attributes:
        held: the stream, of torch.
        kept: objects that rows must keep while the process runs.
    """

    def __init__(self, file: int, *, legacy: bool) -> None:
        sharing.tensor(16)  # torch makes the context, as in a program
        self.cuda = Driver()
        self.kept: list[Any] = []
        self.words = sharing.Words(file)
        self.words.register(self.cuda)
        self.held = rows.default_stream() if legacy else rows.new_stream()
        self._source, self._target = self.cuda.allocate(1 << 20), self.cuda.allocate(1 << 20)
        self._turn = 0
        self._streams = [self.cuda.stream() for _ in range(STREAMS)]
        self._fast = [self.cuda.stream(HIGHEST_PRIORITY) for _ in range(FAST_STREAMS)]
        self._used = self._fast
        for stream in (*self._streams, *self._fast):  # each has its hardware queue from now on
            self._copy(stream)
            self.cuda.settle(stream)
        self._event = self.cuda.event()
        self.cuda.call("cuEventRecord", self._event, self._streams[0])
        for column in self._columns().values():  # so that measured calls are no first calls
            with contextlib.suppress(DriverError, AttributeError):
                column()

    def _copy(self, stream: int) -> None:
        self.cuda.copy(self._target, self._source, 4096, stream)

    def _hold(self) -> None:
        self._turn += 1
        raw = rows.raw(self.held)
        self.cuda.call("cuStreamWaitValue32_v2", raw, self.words.device, self._turn, 0)

    def _release(self) -> None:
        self.words.store(0, self._turn)

    def _columns(self) -> dict[str, Callable[[], Any]]:
        query = self.cuda.function("cuEventQuery")
        word = self.words.device + 8
        pieces = range(0, 16 * 4096, 4096)
        batch = Batch(
            self.cuda,
            (self._target + at for at in pieces),
            (self._source + at for at in pieces),
            4096,
        )
        write = "cuStreamWriteValue32_v2"
        return {
            "event_query": lambda: query(self._event),
            "write_value": lambda: self.cuda.call(write, self._used[0], word, 1, 0),
            "copy": lambda: self._copy(self._used[1]),
            "batch": lambda: batch.enqueue(self._used[2]),
        }

    def _moving(self, streams: list[int]) -> list[int]:
        """Return the streams with copies that end while the held stream waits."""
        events = []
        for stream in streams:
            self._copy(stream)
            events.append(self.cuda.event())
            self.cuda.call("cuEventRecord", events[-1], stream)
        end = time.monotonic() + WINDOW_S
        pairs = zip(streams, events, strict=True)
        return [one for one, each in pairs if self.cuda.within(end - time.monotonic(), each)]

    def streams(self) -> dict[str, int]:
        """Count the streams that move beside the held stream, for use by the rows."""
        self._hold()
        moving, fast = self._moving(self._streams), self._moving(self._fast)
        self._release()
        if len(fast) < FAST_STREAMS and len(moving) >= FAST_STREAMS:
            self._used = moving[:FAST_STREAMS]
        return {
            "move": len(moving),
            "of": STREAMS,
            "high_priority_move": len(fast),
            "of_high_priority": FAST_STREAMS,
        }

    def row(self, name: str) -> dict[str, Any]:
        """Hold the stream, make the row's call, and watch the columns."""
        row = rows.ROWS[name](self)
        window_s = WINDOW_S * rows.PATIENCE.get(name, 1)
        self._hold()
        columns = {
            key: Column(self.cuda, each, (window_s + BLOCKED_S) / CALLS)
            for key, each in self._columns().items()
        }
        for column in columns.values():
            column.await_first()
        call = Call(self, row)
        call.thread.join(window_s)
        time.sleep(BLOCKED_S * 1.2)  # long enough for a held-up column to show
        found: dict[str, Any] = {key: each.verdict() for key, each in columns.items()}
        back_s = call.returned_s
        found["returns_ms"] = LATER if back_s is None else round(back_s * 1e3, 2)
        for column in columns.values():
            column.stop()
        self._release()
        stuck = self._stuck({name: call.thread, **{k: c.thread for k, c in columns.items()}})
        if stuck:
            found["stuck"] = stuck
        if call.error:
            found["error"] = call.error
        return found

    def _stuck(self, threads: dict[str, threading.Thread]) -> list[str]:
        """Return the names of threads, and the stream, that do not go on after the release."""
        end = time.monotonic() + JOIN_S
        for thread in threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        left = [name for name, thread in threads.items() if thread.is_alive()]
        if not left:
            mark = self.cuda.event()
            self.cuda.call("cuEventRecord", mark, rows.raw(self.held))
            if not self.cuda.within(JOIN_S, mark):
                left.append("the stream")
        return left


def work(file: int, names: list[str], *, legacy: bool) -> None:
    """Run the rows, and print each row at its begin and at its end."""
    worker = Worker(file, legacy=legacy)
    for name in names:
        say(begin=name)
        try:
            found = worker.streams() if name == "streams" else worker.row(name)
        except Exception as error:  # noqa: BLE001 - a row's failure is its answer
            found = {"error": f"{type(error).__name__}: {error}"}
        say(row=name, found=found)
        if "stuck" in found:
            break  # the rest in another process
    os._exit(0)  # damage by a row may keep the driver from ending
