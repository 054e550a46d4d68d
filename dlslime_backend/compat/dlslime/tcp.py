"""TcpEndpoint of versions 0.1: an endpoint whose operations have time-outs of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from dlslime_backend.compat.dlslime.core.futures import FAILURES, GOOD, Future, SlimeImmRecvFuture
from dlslime_backend.compat.dlslime.core.info import Info
from dlslime_backend.compat.dlslime.core.pair import Core, bytes_at, immediate, registration
from dlslime_backend.transfer import Transfer

_FAILED, _TIMED_OUT = -1, -2
_IMMEDIATE_TIMEOUT_MS = 30000
_logger = logging.getLogger("dlslime")


class _TcpFuture(Future):
    """An operation whose `wait` returns a status."""

    def __init__(self, transfer: Transfer, endpoint: object, timeout_ms: float | None) -> None:
        super().__init__(transfer, endpoint)
        self._timeout = None if timeout_ms is None else timeout_ms / 1000
        self._status: int | None = None

    def wait(self) -> int:
        """Block until the operation has ended; return 0, -1 (failed, logged) or -2 (timed out)."""
        if self._status is None:
            self._status = self._wait()
            self._ended()
        return self._status

    def wait_for(self, seconds: float) -> int | None:
        """Block for at most `seconds`; return the status, or None before the operation's end."""
        over = threading.Event()
        self._transfer.add_done_callback(lambda _: over.set())
        return self.wait() if over.wait(seconds) else None

    def _wait(self) -> int:
        try:
            self._transfer.wait(self._timeout)
        except TimeoutError:
            return _TIMED_OUT
        except FAILURES as error:
            _logger.warning("%s", error)
            return _FAILED
        return GOOD


class SlimeTcpReadWriteFuture(_TcpFuture):
    """A read or a write."""


class SlimeTcpSendFuture(_TcpFuture):
    """A send."""


class SlimeTcpRecvFuture(_TcpFuture):
    """A receive."""


class TcpEndpoint(Core):
    """One end of a pair, over the best route for the pair, not only TCP.

    `ip` and `port` are passed to the peer and have no effect: the process has one listener for all
    of its pairs (DLSLIME_SOCKET_IFNAME). Assignments are (handle, remote handle, target offset,
    source offset, length); offsets and lengths are in bytes, time-outs in milliseconds.
    """

    def __init__(self, ip: str = "0.0.0.0", port: int = 0) -> None:  # noqa: S104 - not bound to
        super().__init__()
        self._place = {"host": ip, "port": port}
        self._connected = False

    @property
    def mr_info(self) -> Info:  # type: ignore[override]
        """The local regions as a dict for JSON, one entry for each name."""
        return Info(self._regions.info())

    @property
    def endpoint_info(self) -> Info:
        """The dict for the peer's `connect`, to be sent as JSON."""
        return Info(super().endpoint_info, **self._place)

    def register_memory_region(self, *values: Any, **named: Any) -> int:
        """Let the peer access memory: (name, address, offset, length); return the handle."""
        return self._register(*registration(values, named))

    def register_remote_memory_region(self, name: str, mr_info: dict[str, Any]) -> int:
        """Take a region of the peer's `mr_info`; return the handle."""
        return self._remote.add(name, mr_info)

    def connect(self, remote_info: dict[str, Any]) -> None:
        """Take the peer's `endpoint_info`; see `Core.connect`."""
        super().connect(remote_info)
        self._connected = True

    def is_connected(self) -> bool:
        """Return whether `connect` was called; the peer may not be reachable."""
        return self._connected

    def read(
        self, assign: Iterable[Sequence[Any]], stream: object = None, timeout_ms: int = 30000
    ) -> SlimeTcpReadWriteFuture:
        """Begin to read assignments.

        Raises:
            ValueError: a handle is unknown, or a piece is outside of its region. Nothing is read
                then.
        """
        return SlimeTcpReadWriteFuture(self._read(assign), self, timeout_ms)

    def write(
        self, assign: Iterable[Sequence[Any]], stream: object = None, timeout_ms: int = 30000
    ) -> SlimeTcpReadWriteFuture:
        """Begin to write assignments; see `read`."""
        return SlimeTcpReadWriteFuture(self._write(assign), self, timeout_ms)

    def send(
        self, chunk: Sequence[int], stream: object = None, timeout_ms: int = 30000
    ) -> SlimeTcpSendFuture:
        """Begin to send (address, offset, length) of any memory of the process.

        Raises:
            ValueError: the memory is not mapped.
        """
        address, offset, length = chunk
        content = bytes_at(address + offset, length)
        return SlimeTcpSendFuture(self._send(content), self, timeout_ms)

    def recv(
        self, chunk: Sequence[int], stream: object = None, exact_size: bool = False
    ) -> SlimeTcpRecvFuture:
        """Begin to receive into (address, offset, length); see `send`. A message may be shorter."""
        address, offset, length = chunk
        content = bytes_at(address + offset, length)
        return SlimeTcpRecvFuture(self._recv(content), self, None)

    def write_with_imm(
        self, assign: Iterable[Sequence[Any]], imm_data: int = 0, stream: object = None
    ) -> SlimeTcpReadWriteFuture:
        """Write; the peer's `imm_recv` gets a number afterwards. The original raises instead."""
        transfer = self._write(assign, immediate(imm_data))
        return SlimeTcpReadWriteFuture(transfer, self, _IMMEDIATE_TIMEOUT_MS)

    def imm_recv(self, stream: object = None) -> SlimeImmRecvFuture:
        """Begin to receive the number of a `write_with_imm`. The original raises instead."""
        return self._expect_imm()
