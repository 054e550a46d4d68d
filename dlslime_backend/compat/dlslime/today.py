"""Versions 0.0.3 and 0.1: integer handles, futures, memory pools.

    endpoint = RDMAEndpoint(available_nic()[0], 1, "RoCE", num_qp=1)
    mine = endpoint.register_memory_region("cache", tensor.data_ptr(), 0, tensor.nbytes)
    info = endpoint.endpoint_info()                       # a dict of JSON, to the other process
    theirs = endpoint.register_remote_memory_region("cache", their_info["mr_info"]["cache"])
    endpoint.connect(their_info)
    endpoint.read([(mine, theirs, target_offset, source_offset, length)]).wait()

`target_offset` is in the peer's region and `source_offset` in the local region, for reads and for
writes. Offsets and lengths are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dlslime_backend.compat.dlslime.core.futures import (
    SlimeImmRecvFuture,
    SlimeReadWriteFuture,
    SlimeRecvFuture,
    SlimeSendFuture,
)
from dlslime_backend.compat.dlslime.core.pair import Core, bytes_at, immediate, registration


class Today(Core):
    """The calls of today's endpoints."""

    def register_memory_region(self, *values: Any, **named: Any) -> int:
        """Let the peer read and write memory: (key, address, offset, length), in bytes.

        The key is a name or an integer. The memory, of CPUs or of a GPU, must stay until
        `shutdown`, or until the endpoint is dropped. A second registration of an address, with no
        more bytes, adds a name to the region; a known key with another address gets the new memory.

        Returns:
            The handle: 0, 1, ...

        Raises:
            ValueError: the memory is not mapped, or the endpoint was shut down.
            TypeError: arguments are missing, unknown or given twice.
        """
        return self._register(*registration(values, named))

    def unregister_memory_region(self, key: str | int) -> int:
        """Remove a region, by name or handle; return 0, or -1 if there is no such region.

        Raises:
            ValueError: a transfer of this process uses the region.
            TimeoutError: the peer has not given the region back in time.
        """
        return self._regions.unregister(key)

    def register_remote_memory_region(self, *values: Any, **named: Any) -> int:
        """Take a region of the peer's `mr_info`: (key, info); possible before `connect`.

        Returns:
            The handle: 0, 1, ...

        Raises:
            ValueError: `info` is no entry of `mr_info` of dlslime_backend.
            TypeError: arguments are missing, unknown or given twice.
        """
        found = dict(zip(("mr_key", "info"), values, strict=False)) | {
            {"name": "mr_key", "mr_info": "info"}.get(name, name): value
            for name, value in named.items()
        }
        if len(values) > 2 or found.keys() != {"mr_key", "info"}:
            raise TypeError(
                "dlslime: register_remote_memory_region() takes (key, info), not "
                f"{len(values)} values and the names {sorted(named)}"
            )
        return self._remote.add(found["mr_key"], found["info"])

    def read(self, assign: Iterable[Sequence[Any]], stream: object = None) -> SlimeReadWriteFuture:
        """Begin to read assignments: (handle, remote handle, target offset, source offset, length).

        Any number of assignments, in any order; keys are possible instead of handles. `stream` is
        ignored.

        Raises:
            ValueError: a handle is unknown, or a piece is outside of its region. Nothing is read
                then.
        """
        return SlimeReadWriteFuture(self._read(assign), self)

    def write(self, assign: Iterable[Sequence[Any]], stream: object = None) -> SlimeReadWriteFuture:
        """Begin to write assignments; see `read`."""
        return SlimeReadWriteFuture(self._write(assign), self)

    def write_with_imm(
        self, assign: Iterable[Sequence[Any]], imm_data: int = 0, stream: object = None
    ) -> SlimeReadWriteFuture:
        """Write; the peer's `imm_recv` gets `imm_data` once the bytes are in place.

        Args:
            assign: as of `read`.
            imm_data: 32 bits, signed or unsigned.
            stream: ignored.

        Raises:
            ValueError: as `read`, or the number has more bits.
        """
        return SlimeReadWriteFuture(self._write(assign, immediate(imm_data)), self)

    def imm_recv(self, stream: object = None) -> SlimeImmRecvFuture:
        """Begin to receive the number of a `write_with_imm` of the peer, past or future."""
        return self._expect_imm()

    def send(self, chunk: Sequence[int], stream_handler: object = None) -> SlimeSendFuture:
        """Begin to send (address, 0, length) of any memory of the process.

        Raises:
            ValueError: the memory is not mapped, or the offset (ignored by the original) is not 0.
        """
        return SlimeSendFuture(self._send(_memory(chunk)), self)

    def recv(self, chunk: Sequence[int], stream_handler: object = None) -> SlimeRecvFuture:
        """Begin to receive into (address, 0, length); the message may be shorter. See `send`."""
        return SlimeRecvFuture(self._recv(_memory(chunk)), self)

    def process(self) -> int:
        """Return 0: operations proceed by themselves."""
        return 0


def _memory(chunk: Sequence[int]) -> torch.Tensor:
    address, offset, length = chunk
    if offset:
        raise ValueError(
            f"dlslime: offset {offset} of a message at {address:#x}: the original ignores it. Add "
            "it to the address"
        )
    return bytes_at(address, length)
