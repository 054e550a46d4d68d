"""Operations in progress, with the results of each generation of the original."""

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
# Errors raised by failed transfers.
FAILURES = (ValueError, TimeoutError, DistBackendError)

_FOREVER = 1e9  # seconds: the original has no time-outs
_LONGEST_S = 36525 * 86400.0
_logger = logging.getLogger("dlslime")


def status_of(transfer: Transfer, timeout: float | None = None) -> int:
    """Wait; return the original's status: 0, 402 (timed out) or 403 (failed, and logged).

    Args:
        transfer: the operation.
        timeout: in seconds; None is the endpoint's, 300 s.

    Raises:
        ValueError: the time-out is negative or above 100 years.
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
    """An operation in progress. Any number of threads may wait; the endpoint is kept alive."""

    def __init__(self, transfer: Transfer, endpoint: object) -> None:
        self._transfer = transfer
        self._endpoint = endpoint
        self._begin_ns = self._end_ns = time.time_ns()

    def done(self) -> bool:
        """Return whether the operation has ended, with success or failure."""
        return self._transfer.done()

    def time_trace_enabled(self) -> bool:
        """Return True: times are always recorded. The end is the time at which a wait returned."""
        return True

    def time_trace_start_ns(self) -> int:
        """Return the time of the call, in nanoseconds since 1970."""
        return self._begin_ns

    def time_trace_end_ns(self) -> int:
        """Return the time at which the first wait returned, in nanoseconds since 1970.

        Equals the time of the call before any wait has returned.
        """
        return self._end_ns

    def time_trace_elapsed_ns(self) -> int:
        """Return the nanoseconds from the call to the return of the first wait."""
        return self._end_ns - self._begin_ns

    def _ended(self) -> None:
        if self._end_ns == self._begin_ns:
            self._end_ns = time.time_ns()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._transfer.__await__()


class SlimeReadWriteFuture(Future):
    """A read or a write of today's generation."""

    def wait(self, timeout: float | None = None) -> int:
        """Block until the operation has ended, without the GIL; return 0.

        Args:
            timeout: in seconds; None is the endpoint's, 300 s.

        Raises:
            ValueError, TimeoutError, torch.distributed.DistBackendError: the operation has failed,
                and touches no memory any more.
        """
        self._transfer.wait(timeout)
        self._ended()
        return GOOD


class StatusFuture(Future):
    """An operation whose `wait` returns a status, and does not raise if the operation fails."""

    _status: int | None = None
    _waiting: threading.Lock

    def __init__(self, transfer: Transfer, endpoint: object) -> None:
        super().__init__(transfer, endpoint)
        self._waiting = threading.Lock()

    def wait(self, timeout: float = _FOREVER) -> int:
        """Block until the operation has ended, without the GIL; return 0, 402 or 403.

        402 means that the operation timed out, 403 that it failed, as after a `shutdown` of the
        endpoint. The reason of 403 is logged once.

        Args:
            timeout: in seconds; by default about 32 years.

        Raises:
            ValueError: the time-out is negative or above 100 years.
        """
        with self._waiting:  # so that the failure is logged once
            if self._status is None:
                self._status = status_of(self._transfer, timeout)
                self._ended()
        return self._status


class SlimeSendFuture(StatusFuture):
    """A send."""


class SlimeRecvFuture(StatusFuture):
    """A receive."""


class SlimeImmRecvFuture(StatusFuture):
    """A receive of an immediate, the number sent with a write of the peer."""

    def imm_data(self) -> int:
        """Return the number as a signed integer of 32 bits, or 0 before the number has come.

        Does not block.
        """
        if not self._transfer.done() or self.wait() != GOOD:
            return 0
        number: int = self._transfer.wait(0)
        return number - (1 << 32) if number >= 1 << 31 else number


class BatchFuture(Future):
    """A batch of 0.0.1.post, whose `wait` returns None."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the batch has ended, without the GIL.

        Args:
            timeout: in seconds; None is the endpoint's, 300 s.

        Raises:
            ValueError, TimeoutError, torch.distributed.DistBackendError: the batch has failed. (The
                original only logs the failure.)
        """
        self._transfer.wait(timeout)
        self._ended()

    def latency(self) -> timedelta:
        """Return the time from the call to the return of the first wait."""
        return timedelta(microseconds=self.time_trace_elapsed_ns() / 1000)


class Several:
    """Several transfers or messages as one, with the methods of `Transfer` that futures use."""

    def __init__(self, transfers: list[Any]) -> None:
        self._transfers = transfers

    @property
    def nbytes(self) -> int:
        """Number of bytes moved; valid once all are done."""
        return sum(transfer.nbytes for transfer in self._transfers)

    def block_current_stream(self) -> None:
        """Let the current CUDA stream wait for all of the operations."""
        for transfer in self._transfers:
            transfer.block_current_stream()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(self)` once all of the operations have ended."""
        left = itertools.count(len(self._transfers) - 1, -1)

        def one_is_over(_: Any) -> None:
            if next(left) == 0:
                callback(self)

        for transfer in self._transfers:
            transfer.add_done_callback(one_is_over)

    def done(self) -> bool:
        """Return whether all of the operations have ended."""
        return all(transfer.done() for transfer in self._transfers)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for all of the operations, even after a failure; then raise the first failure.

        Args:
            timeout: for each operation, in seconds; None is the endpoint's, 300 s.
        """
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
