"""dlslime among torch's own one-sided transports: `new_transport("dlslime", "cpu")`.

torch 2.15 finds it by the entry-point group "torch.distributed.transports"; older ones have no such
interface, and never import this. Transfers are those of `dlslime_backend.one_sided`.
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
    """A range of a peer's memory, in bytes. Who has it may read and write the memory."""

    exported: bytes
    offset: int
    length: int

    def serialize(self) -> bytes:
        """Return it as bytes, for the peer."""
        text = base64.b64encode(self.exported).decode()
        return json.dumps([_FORMAT, text, self.offset, self.length]).encode()

    @classmethod
    def deserialize(cls, data: bytes) -> DlslimeRemoteBuffer:
        """Return what `serialize` was called on; nothing in it is trusted.

        Raises:
            ValueError: these bytes are something else, or the range is outside of the memory.
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
    """A range of registered memory."""

    def __init__(self, region: memory.Region, offset: int, length: int) -> None:
        self.region = region
        self.offset = offset
        self._length = length

    def size(self) -> int:
        """Return its bytes."""
        return self._length


class DlslimeMutableMemoryView(DlslimeMemoryView):
    """One that may be read into."""

    writable: Literal[True] = True


class DlslimeMemory:
    """A registered tensor."""

    def __init__(self, region: memory.Region) -> None:
        self.region = region

    def to_view(self, offset: int | None = None, length: int | None = None) -> DlslimeMemoryView:
        """Return a range to write from; in bytes, all by default."""
        return DlslimeMemoryView(self.region, *self._range(offset, length))

    def to_mutable_view(
        self, offset: int | None = None, length: int | None = None
    ) -> DlslimeMutableMemoryView:
        """Return a range to read into; in bytes, all by default."""
        return DlslimeMutableMemoryView(self.region, *self._range(offset, length))

    def to_remote_buffer(self, *, timeout: float | None = None) -> DlslimeRemoteBuffer:
        """Return what the peer reads from and writes to."""
        return DlslimeRemoteBuffer(self.region.export(), 0, self.region.nbytes)

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        begin = 0 if offset is None else operator.index(offset)
        size = self.region.nbytes - begin if length is None else operator.index(length)
        if begin < 0 or size < 0 or begin + size > self.region.nbytes:
            raise ValueError(
                f"dlslime: bytes {begin} to {begin + size} of memory of {self.region.nbytes}"
            )
        return begin, size


class _Work(Work):
    """A transfer, as torch's interface has it."""

    def __init__(self, transfer: Transfer, timeout: float | None) -> None:
        super().__init__()
        self._transfer = transfer
        self._timeout = timeout
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is over. What is late is taken back, and touches no memory then."""
        self._transfer.wait(timeout.total_seconds() or self._timeout)
        return True

    def is_completed(self) -> bool:
        """Tell whether it is over, well or badly."""
        return self._transfer.done()

    def exception(self) -> BaseException | None:
        """Return what went wrong, once it is over."""
        if not self._transfer.done():
            return None
        try:
            self._transfer.wait(0)
        except Exception as error:  # noqa: BLE001  (it is returned, whatever it is)
            return error
        return None

    def is_success(self) -> bool:
        """Tell whether it is over, and well."""
        return self.is_completed() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        """Wait; there are no tensors to return."""
        self.wait()
        return []

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of an empty list."""
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
    """One end of a pair: see torch.distributed._transport.Transport.

    Args:
        device: "cpu", "cuda", or None: any memory is taken by all of them.
        timeout: of operations, and of reaching the peer, in seconds.

    Raises:
        ValueError: another device.
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
        """Tell whether dlslime was built for this torch."""
        try:
            extension()
        except ImportError:
            return False
        return True

    def bind(self, *, timeout: float | None = None) -> bytes:
        """Return what the peer connects to."""
        return self._endpoint.address

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Say who the peer is; it is reached with the first transfer. Returns 0."""
        self._endpoint.connect(peer_url)
        self._peer = peer_url
        return 0

    def connected(self) -> bool:
        """Tell whether the peer is known."""
        return bool(self._peer)

    def register_memory(
        self, tensor: torch.Tensor, *, timeout: float | None = None
    ) -> DlslimeMemory:
        """Make a contiguous CPU or CUDA tensor readable and writable for the peer.

        Raises:
            ValueError: it is something else.
        """
        made = DlslimeMemory(memory.register(tensor))
        self._regions.append(made.region)
        return made

    def unregister_memory(self, memory: DlslimeMemory, *, timeout: float | None = None) -> None:
        """Take memory back: when this returns, the peer does not touch it any more.

        Raises:
            ValueError: a transfer of this process with it goes on.
            TimeoutError: the peer has not let go of it.
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
        """Write to the peer; returns 0, or a Work at once.

        Raises:
            ValueError: the two are of different sizes, or no range of memory.
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
        """Read from the peer; as `write`."""
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
                f"dlslime: {local.size()} bytes here and {remote.length} bytes at the peer"
            )
        there = memory.import_region(remote.exported)
        transfer = begin(local.region, there, [(local.offset, remote.offset, remote.length)])
        if async_op:
            return _Work(transfer, timeout)
        try:
            transfer.wait(timeout)
        except BaseException:  # Ctrl-C as well: the caller has no handle of what would go on
            transfer.cancel()
            raise
        return 0

    def close(self, *, timeout: float | None = None) -> None:
        """End the pair, and take all memory back. Does nothing the second time."""
        self._endpoint.close()
        while self._regions:
            self._regions[-1].deregister(10.0 if timeout is None else timeout)
            self._regions.pop()

    async def close_async(self, *, timeout: float | None = None) -> None:
        """Close, in a thread, so that the event loop goes on."""
        await asyncio.to_thread(self.close, timeout=timeout)
