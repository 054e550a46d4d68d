"""dlslime as one of torch's one-sided transports: `new_transport("dlslime", "cpu")`.

torch 2.15 finds the class by the entry-point group "torch.distributed.transports"; older versions
of torch have no such interface, and never import the module. The transfers are those of
`dlslime_backend.one_sided`. Offsets and lengths are in bytes, time-outs in seconds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import operator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
from torch.distributed import Work
from torch.distributed._transport import Transport  # type: ignore[import-not-found,unused-ignore]

from dlslime_backend import memory, one_sided
from dlslime_backend._load import extension
from dlslime_backend._untrusted import choice, decode_base64, integer, items, parse_json
from dlslime_backend.transfer import Transfer

_FORMAT = "dlslime transport 1"
_MOST_BYTES = 128 << 10  # of a serialized buffer


@dataclass(frozen=True)
class DlslimeRemoteBuffer:
    """A range of a peer's memory, in bytes. Every holder may read and write the memory."""

    exported: bytes
    offset: int
    length: int

    def serialize(self) -> bytes:
        """Return the buffer as bytes, for the peer."""
        text = base64.b64encode(self.exported).decode()
        return json.dumps([_FORMAT, text, self.offset, self.length]).encode()

    @classmethod
    def deserialize(cls, data: bytes) -> DlslimeRemoteBuffer:
        """Return the buffer from the bytes of `serialize`; the bytes are not trusted.

        Raises:
            ValueError: the bytes are no serialized buffer, or the range is outside of the region.
        """
        try:
            found = parse_json(data, most_bytes=_MOST_BYTES, most_values=16)
            form, text, offset, length = items(found, "it", 4, 4)
            choice(form, "the format", [_FORMAT])
            exported = decode_base64(text, "the region", _MOST_BYTES)
            region = memory.import_region(exported)
            integer(offset, "the offset", 0, region.nbytes)
            integer(length, "the length", 0, region.nbytes - offset)
        except ValueError as error:
            raise ValueError(f"dlslime: no remote buffer: {error}") from error
        return cls(exported, offset, length)


class DlslimeMemoryView:
    """A range of registered memory, in bytes; a source of writes."""

    def __init__(self, region: memory.Region, offset: int, length: int) -> None:
        self.region = region
        self.offset = offset
        self._length = length

    def size(self) -> int:
        """Return the length in bytes."""
        return self._length


class DlslimeMutableMemoryView(DlslimeMemoryView):
    """A range of registered memory that reads may fill."""

    writable: Literal[True] = True


class DlslimeMemory:
    """A registered tensor."""

    def __init__(self, region: memory.Region) -> None:
        self.region = region

    def to_view(self, offset: int | None = None, length: int | None = None) -> DlslimeMemoryView:
        """Return a range to write from.

        Args:
            offset: of the first byte; None is 0.
            length: in bytes; None is the rest of the memory.

        Raises:
            ValueError: the range is not inside of the memory.
        """
        return DlslimeMemoryView(self.region, *self._range(offset, length))

    def to_mutable_view(
        self, offset: int | None = None, length: int | None = None
    ) -> DlslimeMutableMemoryView:
        """Return a range to read into; see `to_view`."""
        return DlslimeMutableMemoryView(self.region, *self._range(offset, length))

    def to_remote_buffer(self, *, timeout: float | None = None) -> DlslimeRemoteBuffer:
        """Return the whole memory as a buffer for the peer; `timeout` is not used."""
        return DlslimeRemoteBuffer(self.region.export(), 0, self.region.nbytes)

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        begin = 0 if offset is None else operator.index(offset)
        size = self.region.nbytes - begin if length is None else operator.index(length)
        if begin < 0 or size < 0 or begin + size > self.region.nbytes:
            raise ValueError(
                f"dlslime: bytes {begin} to {begin + size} are outside of memory of "
                f"{self.region.nbytes} bytes"
            )
        return begin, size


class _Work(Work):
    """A transfer as a Work of torch."""

    def __init__(self, transfer: Transfer, timeout: float | None) -> None:
        super().__init__()
        self._transfer = transfer
        self._timeout = timeout
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the transfer has ended. A late transfer is cancelled; see `Transfer.wait`."""
        self._transfer.wait(timeout.total_seconds() or self._timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether the transfer has ended, with success or failure."""
        return self._transfer.done()

    def exception(self) -> BaseException | None:
        """Return the error of the transfer; None before the end and after success."""
        if not self._transfer.done():
            return None
        try:
            self._transfer.wait(0)
        except Exception as error:  # noqa: BLE001 (any error is returned)
            return error
        return None

    def is_success(self) -> bool:
        """Return whether the transfer has ended without an error."""
        return self.is_completed() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        """Wait; return an empty list."""
        self.wait()
        return []

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future, completed with an empty list or with the error."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._transfer.add_done_callback(self._settle)
        return self._future

    def _settle(self, _: Transfer) -> None:
        assert self._future is not None
        error = self.exception()
        if error is None:
            self._future.set_result([])
        else:
            self._future.set_exception(error)


class DlslimeTransport(Transport):  # type: ignore[misc,unused-ignore]
    """One end of a pair; the methods are those of torch.distributed._transport.Transport.

    Args:
        device: "cpu", "cuda", or None. Every transport takes memory of both.
        timeout: of operations, and of reaching the peer, in seconds.

    Raises:
        ValueError: another device, or the time-out is out of range.
    """

    def __init__(self, device: torch.device | str | None = None, timeout: float = 300.0) -> None:
        super().__init__(device)
        if self.device is not None and self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"dlslime transfers memory of CPUs and GPUs, and not of {self.device}")
        self._endpoint = one_sided.Endpoint("transport", timeout)
        self._regions: list[memory.Region] = []
        self._peer = b""

    @staticmethod
    def supported() -> bool:
        """Return whether dlslime was built for the installed torch."""
        try:
            extension()
        except ImportError:
            return False
        return True

    def bind(self, *, timeout: float | None = None) -> bytes:
        """Return the address for the peer's `connect`; `timeout` is not used."""
        return self._endpoint.address

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Set the peer by the result of its `bind`; return 0.

        The connection is made at the first transfer; `timeout` is not used.

        Raises:
            ValueError: the bytes are no address of another endpoint, or the transport has another
                peer.
            TypeError: `peer_url` is not bytes.
        """
        self._endpoint.connect(peer_url)
        self._peer = peer_url
        return 0

    def connected(self) -> bool:
        """Return whether `connect` has been called; the peer may not be reachable."""
        return bool(self._peer)

    def register_memory(
        self, tensor: torch.Tensor, *, timeout: float | None = None
    ) -> DlslimeMemory:
        """Make a contiguous CPU or CUDA tensor readable and writable for the peer.

        The memory is kept until `unregister_memory`; `timeout` is not used.

        Raises:
            ValueError: the tensor is not contiguous or on another device.
        """
        made = DlslimeMemory(memory.register(tensor))
        self._regions.append(made.region)
        return made

    def unregister_memory(self, memory: DlslimeMemory, *, timeout: float | None = None) -> None:
        """End the peer's access to memory: after the call, the peer does not touch the memory.

        Args:
            memory: from `register_memory`.
            timeout: seconds to wait for the peer; None is 10.

        Raises:
            ValueError: a transfer of this process uses the memory.
            TimeoutError: the peer has not given the memory back in time.
        """
        memory.region.deregister(10.0 if timeout is None else timeout)
        if memory.region in self._regions:
            self._regions.remove(memory.region)

    def write(
        self,
        local_buffer: DlslimeMemoryView,
        remote_buffer: DlslimeRemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | Work:
        """Write to the peer.

        Args:
            local_buffer: the source.
            remote_buffer: the destination, of the same length.
            async_op: return a Work at once, instead of waiting.
            timeout: of the wait, in seconds; None is the time-out of the transport.

        Returns:
            0 once the bytes are written, or the Work.

        Raises:
            ValueError: the lengths differ, a buffer is no valid range, or the time-out is negative
                or not finite.
            TimeoutError: the transfer did not end in time; it is cancelled.
            torch.distributed.DistBackendError: the peer has ended or can't be reached.
        """
        return self._transfer(self._endpoint.write, local_buffer, remote_buffer, async_op, timeout)

    def read(
        self,
        local_buffer: DlslimeMutableMemoryView,
        remote_buffer: DlslimeRemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | Work:
        """Read from the peer; see `write`. `local_buffer` must be a mutable view."""
        if not getattr(local_buffer, "writable", False):
            raise ValueError("dlslime: a read needs a mutable view")
        return self._transfer(self._endpoint.read, local_buffer, remote_buffer, async_op, timeout)

    @staticmethod
    def _transfer(
        begin: Any,
        local: DlslimeMemoryView,
        remote: DlslimeRemoteBuffer,
        async_op: bool,
        timeout: float | None,
    ) -> int | Work:
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            raise ValueError(f"dlslime: a time-out of {timeout} s: it must be at least 0 s")
        if local.size() != remote.length:
            raise ValueError(
                f"dlslime: {local.size()} bytes here and {remote.length} bytes at the peer: "
                "both numbers must be equal"
            )
        there = memory.import_region(remote.exported)
        transfer = begin(local.region, there, [(local.offset, remote.offset, remote.length)])
        if async_op:
            return _Work(transfer, timeout)
        try:
            transfer.wait(timeout)
        except BaseException:  # Ctrl-C, too: the caller has no handle to cancel by
            transfer.cancel()
            raise
        return 0

    def close(self, *, timeout: float | None = None) -> None:
        """Leave the pair, and unregister all memory. Does nothing the second time.

        Args:
            timeout: seconds to wait for the peer, for each tensor; None is 10.

        Raises:
            ValueError: a transfer of this process uses the memory.
            TimeoutError: the peer has not given memory back in time; a second call continues.
        """
        self._endpoint.close()
        while self._regions:
            self._regions[-1].deregister(10.0 if timeout is None else timeout)
            self._regions.pop()

    async def close_async(self, *, timeout: float | None = None) -> None:
        """Run `close` in a thread, so that the event loop is not blocked."""
        await asyncio.to_thread(self.close, timeout=timeout)
