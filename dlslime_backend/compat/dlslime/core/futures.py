"""What is under way, with the results that each generation of the original returns."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

from torch.distributed import DistBackendError

from dlslime_backend.transfer import Transfer

GOOD, TIMED_OUT, FAILED = 0, 402, 403
# What a transfer raises that has failed.
FAILURES = (ValueError, TimeoutError, DistBackendError)

_FOREVER = 1e9  # seconds: the original has no time-outs
_LONGEST_S = 36525 * 86400.0
_logger = logging.getLogger("dlslime")


def status_of(transfer: Transfer, timeout: float | None = None) -> int:
    """Wait, and return the original's status: 0, 402 (timed out) or 403 (failed, and logged).

    Raises:
        ValueError: that is no time-out.
    """
    if timeout is not None and not 0 <= timeout <= _LONGEST_S:
        raise ValueError(
            f"dlslime: a wait's time-out of {timeout} s: it must be at least 0 s, and at most 100 "
            "years"
        )
    try:
        transfer.wait(timeout)
    except TimeoutError:
        return TIMED_OUT
    except FAILURES as error:
        _logger.warning("%s", error)
        return FAILED
    return GOOD


class Future:
    """Something under way, which keeps its endpoint. Any thread may wait, and several may."""

    def __init__(self, transfer: Transfer, endpoint: object) -> None:
        self._transfer = transfer
        self._endpoint = endpoint
        self._begin_ns = self._end_ns = time.time_ns()

    def done(self) -> bool:
        """Tell whether it is over."""
        return self._transfer.done()

    def time_trace_enabled(self) -> bool:
        """Tell whether the times are known: they are, to when a thread has waited."""
        return True

    def time_trace_start_ns(self) -> int:
        """Return when it began, in nanoseconds since 1970."""
        return self._begin_ns

    def time_trace_end_ns(self) -> int:
        """Return when a thread had waited for it, in nanoseconds since 1970."""
        return self._end_ns

    def time_trace_elapsed_ns(self) -> int:
        """Return the difference."""
        return self._end_ns - self._begin_ns

    def _ended(self) -> None:
        if self._end_ns == self._begin_ns:
            self._end_ns = time.time_ns()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._transfer.__await__()


class SlimeReadWriteFuture(Future):
    """A read or a write of today's generation."""

    def wait(self, timeout: float | None = None) -> int:
        """Block until it is over, without the GIL; returns 0.

        Raises:
            ValueError, TimeoutError, torch.distributed.DistBackendError: it has failed, and touches
                no memory any more.
        """
        self._transfer.wait(timeout)
        self._ended()
        return GOOD


class StatusFuture(Future):
    """What returns a status, and raises nothing."""

    _status: int | None = None
    _waiting: threading.Lock

    def __init__(self, transfer: Transfer, endpoint: object) -> None:
        super().__init__(transfer, endpoint)
        self._waiting = threading.Lock()

    def wait(self, timeout: float = _FOREVER) -> int:
        """Block until it is over, without the GIL; returns 0, or 403 where it has failed.

        It also fails when the endpoint is shut down. Why is logged once.
        """
        with self._waiting:  # several threads may wait, and the failure is logged once
            if self._status is None:
                self._status = status_of(self._transfer, timeout)
                self._ended()
        return self._status


class SlimeSendFuture(StatusFuture):
    """A send."""


class SlimeRecvFuture(StatusFuture):
    """A receive."""


class SlimeImmRecvFuture(StatusFuture):
    """A number that is to come with a write of the peer's."""

    def imm_data(self) -> int:
        """Return the number, of 32 bits with a sign; 0 until it has come. Does not block."""
        if not self._transfer.done() or self.wait() != GOOD:
            return 0
        number: int = self._transfer.wait(0)
        return number - (1 << 32) if number >= 1 << 31 else number


class BatchFuture(Future):
    """A batch of 0.0.1.post: nothing is returned."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is over, without the GIL.

        Raises:
            ValueError, TimeoutError, torch.distributed.DistBackendError: it has failed. (The
                original only logs that.)
        """
        self._transfer.wait(timeout)
        self._ended()

    def latency(self) -> timedelta:
        """Return the time from the call until a thread had waited for it."""
        return timedelta(microseconds=self.time_trace_elapsed_ns() / 1000)


class Several:
    """Several transfers or messages as one, with the methods of `Transfer` that are used here."""

    def __init__(self, transfers: list[Any]) -> None:
        self._transfers = transfers

    @property
    def nbytes(self) -> int:
        """How many bytes have been moved, once done."""
        return sum(transfer.nbytes for transfer in self._transfers)

    def block_current_stream(self) -> None:
        """Let the current CUDA stream wait for all of them."""
        for transfer in self._transfers:
            transfer.block_current_stream()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back once all are over."""
        left = itertools.count(len(self._transfers) - 1, -1)

        def one_is_over(_: Any) -> None:
            if next(left) == 0:
                callback(self)

        for transfer in self._transfers:
            transfer.add_done_callback(one_is_over)

    def done(self) -> bool:
        """Tell whether all are over."""
        return all(transfer.done() for transfer in self._transfers)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for all of them, also where one has failed, and raise the first failure."""
        failure: Exception | None = None
        for transfer in self._transfers:
            try:
                transfer.wait(timeout)
            except FAILURES as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def __await__(self) -> Generator[Any, None, None]:
        for transfer in self._transfers:
            yield from transfer.__await__()
