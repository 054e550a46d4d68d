"""Versions 0.0.1.post: batches of assignments, also for messages.

    endpoint = RDMAEndpoint(device_name=available_nic()[0], ib_port=1, link_type="RoCE")
    endpoint.register_memory_region("cache", tensor.data_ptr(), 0, tensor.nbytes)
    endpoint.connect(their_endpoint_info)
    endpoint.read_batch([Assignment(mr_key="cache", target_offset=0, source_offset=8, length=8)])

Keys are the same at both ends. Failures raise, in the call or in the future's `wait`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch

from dlslime_backend.compat.dlslime.core.assignments import Assignment
from dlslime_backend.compat.dlslime.core.futures import BatchFuture, Several, status_of
from dlslime_backend.compat.dlslime.core.pair import Core
from dlslime_backend.transfer import Transfer

Batch = Sequence[Any]


class OpCode(Enum):
    """Kinds of operations, with the original's numbers."""

    READ = 0
    WRITE = 1
    SEND = 2
    RECV = 3
    WRITE_WITH_IMM_DATA = 5

    def __int__(self) -> int:
        return int(self.value)


class _Later:
    """A message that is sent after all earlier writes have ended."""

    def __init__(self, begin: Callable[[], Transfer]) -> None:
        self._begin = begin
        self._begun = threading.Event()
        self._transfer: Transfer | None = None
        self._failure: Exception | None = None

    def begin(self) -> None:
        try:
            self._transfer = self._begin()
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            self._failure = error
        self._begun.set()

    def done(self) -> bool:
        return self._begun.is_set() and (self._transfer is None or self._transfer.done())

    def wait(self, timeout: float | None = None) -> None:
        if not self._begun.wait(timeout):
            raise TimeoutError("dlslime: a write that comes before a message is not over yet")
        if self._failure is not None:
            raise self._failure
        assert self._transfer is not None
        self._transfer.wait(timeout)


class _InOrder:
    """Keeps messages in order with earlier writes, some of which are announced by messages."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._queue: deque[Transfer | _Later] = deque()

    def send(self, begin: Callable[[], Transfer]) -> Any:
        """Begin a message, at once or after the writes in progress."""
        with self._lock:
            if not self._queue:
                return begin()
            self._queue.append(later := _Later(begin))
            return later

    def write(self, transfer: Transfer, told: list[Callable[[], Transfer]]) -> list[Any]:
        """Queue a write, and messages that begin after its end; return all of them."""
        later = [_Later(begin) for begin in told]
        with self._lock:
            first = not self._queue
            self._queue += [transfer, *later]
            if first:
                transfer.add_done_callback(self._go_on)
        return [transfer, *later]

    def _go_on(self, _over: Transfer) -> None:
        with self._lock:
            self._queue.popleft()  # the write that has ended
            while self._queue:
                first = self._queue[0]
                if not isinstance(first, _Later):
                    first.add_done_callback(self._go_on)
                    return
                first.begin()
                self._queue.popleft()


class Post(Core):
    """The calls of versions 0.0.1.post."""

    _order: _InOrder | None = None

    @property
    def rdma_info(self) -> list[Any]:
        """An empty list: dlslime connects by itself, at the first operation."""
        return []

    def read_batch(self, batch: Batch, qpi: int = -1, async_op: bool = False) -> Any:
        """Read `Assignment`s.

        Args:
            batch: the assignments; keys are the same at both ends.
            qpi: a queue pair, ignored. True means `async_op`, which the first versions had in the
                place of `qpi`.
            async_op: return a future at once, instead of waiting.

        Returns:
            None, or a `BatchFuture`.

        Raises:
            ValueError: a key is unknown, or a piece is outside of its region. Nothing is read then.
        """
        return self._result(lambda: self._read(_five(batch)), qpi, async_op)

    def write_batch(self, batch: Batch, qpi: int = -1, async_op: bool = False) -> Any:
        """Write `Assignment`s; see `read_batch`."""
        return self._result(lambda: self._write(_five(batch)), qpi, async_op)

    def write_batch_with_imm_data(
        self, batch: Batch, qpi: int = -1, imm_data: int = -1, async_op: bool = False
    ) -> Any:
        """Write `Assignment`s, and then complete one receive of the peer for each assignment.

        The receives get no bytes. `imm_data` is not sent, as Python programs can't read the number.
        """
        told = [self._begin_empty] * len(batch)
        return self._result(
            lambda: Several(self._messages().write(self._write(_five(batch)), told)), qpi, async_op
        )

    def send_batch(self, batch: Batch, async_op: bool = False) -> Any:
        """Send each `Assignment` as a message: `length` local bytes at `source_offset`."""
        contents = self._contents(batch)
        return self._result(
            lambda: Several([self._messages().send(partial(self._send, c)) for c in contents]),
            -1,
            async_op,
        )

    def recv_batch(self, batch: Batch, qpi: int = -1, async_op: bool = False) -> Any:
        """Receive the next messages, one into each `Assignment`; a message may be shorter."""
        contents = self._contents(batch)
        return self._result(lambda: Several([self._recv(c) for c in contents]), qpi, async_op)

    def read_batch_with_callback(
        self, batch: Batch, callback: Callable[[int], object]
    ) -> BatchFuture:
        """Read `Assignment`s, and call `callback` with the status on the callback thread.

        The status is 0, 402 (timed out) or 403 (failed, and logged).
        """
        transfer = self._read(_five(batch))
        future = BatchFuture(transfer, self)
        transfer.add_done_callback(lambda ended: callback(status_of(ended, 0)))
        return future

    def post_oneside_raw_v(
        self,
        opcode: OpCode,
        keys: Sequence[str],
        toffs: Sequence[int],
        soffs: Sequence[int],
        lengths: Sequence[int],
        async_op: bool = False,
    ) -> Any:
        """Read or write pieces given as parallel lists; see `read_batch`.

        Raises:
            ValueError: the operation is neither READ nor WRITE, the lists have unequal lengths, or
                as `read_batch`.
        """
        calls = {OpCode.READ: self.read_batch, OpCode.WRITE: self.write_batch}
        if opcode not in calls:
            raise ValueError(f"dlslime: post_oneside_raw_v() reads and writes, and not {opcode}")
        batch = [Assignment(*each) for each in zip(keys, toffs, soffs, lengths, strict=True)]
        return calls[opcode](batch, async_op=async_op)

    def reload_memory_pool(self) -> int:
        """Release all regions of this end; return 0.

        Raises:
            TimeoutError: the peer has not given a region back within 10 s.
            ValueError: a transfer of this process uses a region.
        """
        self._regions.release(10.0)
        return 0

    def stop(self) -> None:
        """Call `shutdown`."""
        self.shutdown()

    def _contents(self, batch: Batch) -> list[torch.Tensor]:
        return [self._regions.find(each[0]).bytes_at(each[3], each[4]) for each in _five(batch)]

    def _messages(self) -> _InOrder:
        if self._order is None:
            self._order = _InOrder()
        return self._order

    def _begin_empty(self) -> Transfer:
        return self._send(torch.empty(0, dtype=torch.uint8))

    def _result(self, begin: Callable[[], Any], qpi: Any, async_op: bool) -> BatchFuture | None:
        future = BatchFuture(begin(), self)
        if async_op or qpi is True:
            return future
        future.wait()
        return None


def _five(batch: Batch) -> list[Sequence[Any]]:
    return [each if len(each) == 5 else Assignment(*each) for each in batch]
