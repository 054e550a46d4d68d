"""Handles of operations in progress: wait, poll, await, cancel, or be called back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import select
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

from dlslime_backend._load import extension

_CANCEL_GRACE = 1.0  # seconds
_logger = logging.getLogger("dlslime")


class _LoopEnds:
    """Completes futures of an event loop when operations end: by a descriptor, without a thread."""

    _of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopEnds] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._core = extension().Notifier()
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._next = 0
        loop.add_reader(self._core.fd, self._on_ready)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _LoopEnds:
        """Return the instance of an event loop; make it at the first call."""
        if loop not in cls._of_loops:
            cls._of_loops[loop] = cls(loop)
        return cls._of_loops[loop]

    def future(self, pending: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of `loop` that is done when `pending` has ended; the result is None."""
        self._next += 1
        future: asyncio.Future[None] = loop.create_future()
        self._futures[self._next] = future
        pending.watch(self._core, self._next)
        return future

    def _on_ready(self) -> None:
        for number in self._core.take():
            future = self._futures.pop(number)
            if not future.done():
                future.set_result(None)


class _Callbacks:
    """Runs callbacks of ended operations, on one thread per process that sleeps on a descriptor."""

    _made: _Callbacks | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._core = extension().Notifier()
        self._waiting: dict[int, Callable[[], object]] = {}
        self._numbers = itertools.count(1)
        threading.Thread(target=self._run, name="dlslime-callbacks", daemon=True).start()

    @classmethod
    def of_process(cls) -> _Callbacks:
        """Return the instance of the process; make it, and start the thread, at the first call."""
        with cls._making:
            if cls._made is None:
                cls._made = cls()
            return cls._made

    def add(self, pending: Any, callback: Callable[[], object]) -> None:
        """Have `callback` called on the callback thread when `pending` has ended."""
        number = next(self._numbers)
        self._waiting[number] = callback
        pending.watch(self._core, number)

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._core.fd, select.POLLIN)
        while True:
            ready.poll()
            for number in self._core.take():
                try:
                    self._waiting.pop(number)()
                except BaseException:  # SystemExit, too: all transfers share the thread
                    _logger.exception("a callback of a dlslime transfer has failed")


class Transfer:
    """A transfer, a send or a receive in progress. Any thread may use the handle.

    The operation proceeds by itself, and continues if the handle is dropped. To learn of the end,
    call `wait`, poll `done`, `await` the handle, or add a callback. Only `wait` and
    `block_current_stream` have a time-out; cancelling an `await`, as `asyncio.timeout` does,
    cancels the operation.
    """

    __slots__ = ("_core", "_give_back", "_result")

    def __init__(
        self,
        core: Any,
        result: Callable[[Any], Any] | None = None,
        give_back: Callable[[Any], Any] | None = None,
    ) -> None:
        self._core = core
        self._result = result
        # Called with the core when an `await` was cancelled: an immediate may have come, and would
        # be lost.
        self._give_back = give_back

    def done(self) -> bool:
        """Return whether the operation has ended, with success or failure. Also makes progress."""
        return bool(self._core.done())

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the operation has ended, without the GIL.

        Python's main thread runs signal handlers meanwhile. If a handler raises, as Ctrl-C does,
        the operation continues, and may be waited for again or cancelled.

        Args:
            timeout: seconds, 0 to 100 years; None is the time-out of the group or endpoint. A late
                operation is cancelled before `wait` raises, and touches no memory afterwards; if
                the peer does not answer for another second, `wait` raises all the same, and the
                memory is kept alive until the peer lets go.

        Returns:
            The number if the handle came from `expect_imm`, else None.

        Raises:
            ValueError: the region was deregistered, the handle of the region belongs to another
                process than the peer, or the time-out is out of range.
            TimeoutError: the operation did not end in time.
            torch.distributed.DistBackendError: the peer has ended or can't be reached, or the
                operation was cancelled.
        """
        self._core.wait(timeout)
        return None if self._result is None else self._result(self._core)

    def block_current_stream(self) -> None:
        """Let the current CUDA stream wait for the operation, instead of the host.

        Work queued on the stream after the call sees the bytes. If the operation fails, or does not
        end within the time-out of the group or endpoint, the stream continues, the error is logged,
        and `wait` raises the error. Blocks the host if streams can't be made to wait
        (docs/cuda.md).
        """
        self._core.hold_current_stream()

    def add_done_callback(self, callback: Callable[[Transfer], object]) -> None:
        """Call `callback(transfer)` once the operation has ended, with success or failure.

        In the callback, `transfer.wait()` returns or raises at once. All callbacks of the process
        run one after another on one thread, so a callback should be short. Exceptions of callbacks
        are logged.
        """
        _Callbacks.of_process().add(self._core, lambda: callback(self))

    def cancel(self) -> None:
        """Cancel the operation. It ends soon, and touches no memory after its end."""
        self._core.cancel()

    @property
    def ended(self) -> bool:
        """Whether the operation has ended, with success or failure.

        Makes no progress, and costs less than `done`: for a program that watches many operations,
        and makes progress by other calls, such as `Hub.accept` or `done` of one operation.
        """
        return bool(self._core.ended)

    @property
    def nbytes(self) -> int:
        """Number of bytes moved; valid once the operation is done."""
        return int(self._core.nbytes)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._ended().__await__()

    async def _ended(self) -> Any:
        if not self._core.done():
            loop = asyncio.get_running_loop()
            try:
                await _LoopEnds.of(loop).future(self._core, loop)
            except asyncio.CancelledError:
                self._core.cancel()
                try:
                    await asyncio.wait(
                        [_LoopEnds.of(loop).future(self._core, loop)], timeout=_CANCEL_GRACE
                    )
                finally:
                    if self._give_back is not None:
                        self._give_back(self._core)
                raise
        return self.wait(0)
