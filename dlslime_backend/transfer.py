"""What is under way: to wait for, to ask, to cancel or to await."""

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
    """What has ended, told to the futures of one event loop by a descriptor, without a thread."""

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
        """Return the one of this loop."""
        if loop not in cls._of_loops:
            cls._of_loops[loop] = cls(loop)
        return cls._of_loops[loop]

    def future(self, pending: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future that is done when `pending` is."""
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
    """Calls back what has ended: one thread for all, which sleeps on a descriptor."""

    _made: _Callbacks | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._core = extension().Notifier()
        self._waiting: dict[int, Callable[[], object]] = {}
        self._numbers = itertools.count(1)
        threading.Thread(target=self._run, name="dlslime-callbacks", daemon=True).start()

    @classmethod
    def of_process(cls) -> _Callbacks:
        """Return the one of this process."""
        with cls._making:
            if cls._made is None:
                cls._made = cls()
            return cls._made

    def add(self, pending: Any, callback: Callable[[], object]) -> None:
        """Call back when `pending` is over."""
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
                except BaseException:  # SystemExit, too: the thread is everybody's
                    _logger.exception("a callback of a dlslime transfer has failed")


class Transfer:
    """Something under way: a transfer, a send or a receive. Any thread may use it.

    It goes on by itself; `wait` for it, ask `done` from time to time, `await` it, or be called
    back. Dropping it stops nothing. Only `wait` and `block_current_stream` have a time-out; an
    `await` that is cancelled, as by `asyncio.timeout`, cancels the transfer.
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
        self._give_back = give_back  # what has come, and the caller will not take

    def done(self) -> bool:
        """Tell whether it is over, well or badly."""
        return bool(self._core.done())

    def wait(self, timeout: float | None = None) -> Any:
        """Block until it is over; other Python threads run meanwhile.

        In Python's main thread the handlers of signals run, too: after Ctrl-C the transfer goes on,
        and may be waited for again, or cancelled.

        Args:
            timeout: in seconds; None is the time-out of the group, or of the endpoint. What is late
                is taken back: it touches no memory after this raises.

        Returns:
            The number, of `expect_imm`; else None.

        Raises:
            ValueError: the memory is not registered any more, or the handle is of another process.
            TimeoutError: it took too long.
            torch.distributed.DistBackendError: the peer has ended, or can't be reached; or it was
                cancelled.
        """
        self._core.wait(timeout)
        return None if self._result is None else self._result(self._core)

    def block_current_stream(self) -> None:
        """Let the current CUDA stream wait until it is over, instead of the host.

        What is queued on the stream from now on finds the bytes there. If the transfer fails, the
        stream is let go and an error is logged, which `wait` raises. Blocks the host where streams
        can't be made to wait (docs/cuda.md).
        """
        self._core.hold_current_stream()

    def add_done_callback(self, callback: Callable[[Transfer], object]) -> None:
        """Call `callback(transfer)` once it is over, well or badly: its `wait` tells, and returns.

        Callbacks run one after the other in a thread that all transfers of the process share, so
        they should be short. What one raises is logged.
        """
        _Callbacks.of_process().add(self._core, lambda: callback(self))

    def cancel(self) -> None:
        """Take it back; it ends soon, and touches no memory then."""
        self._core.cancel()

    @property
    def nbytes(self) -> int:
        """How many bytes have been moved, once done."""
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
