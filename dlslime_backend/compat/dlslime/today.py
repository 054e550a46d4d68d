"""Versions 0.0.3 and 0.1: handles of integers, futures, pools of memory.

    endpoint = RDMAEndpoint(available_nic()[0], 1, "RoCE", num_qp=1)
    mine = endpoint.register_memory_region("cache", tensor.data_ptr(), 0, tensor.nbytes)
    info = endpoint.endpoint_info()                       # a dict of JSON, to the other process
    theirs = endpoint.register_remote_memory_region("cache", their_info["mr_info"]["cache"])
    endpoint.connect(their_info)
    endpoint.read([(mine, theirs, target_offset, source_offset, length)]).wait()

`target_offset` is in the peer's region and `source_offset` in ours, for reads and for writes.
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

        The key is a name or an integer. The memory, of processors or of a GPU, must stay until
        `shutdown`, or until the endpoint is dropped. The same address again, with no more bytes, is
        the same region under one name more; a known key with another address is replaced.

        Returns:
            The handle: 0, 1, ...

        Raises:
            ValueError: no such memory is mapped, or the endpoint was shut down.
        """
        return self._register(*registration(values, named))

    def unregister_memory_region(self, key: str | int) -> int:
        """Forget a region, by its name or handle; returns 0, or -1 where there is none."""
        return self._regions.unregister(key)

    def register_remote_memory_region(self, *values: Any, **named: Any) -> int:
        """Take one region of the peer's `mr_info`: (key, info); also before `connect`.

        Returns:
            The handle: 0, 1, ...

        Raises:
            ValueError: it is something else.
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
        """Begin to read (handle, remote handle, target offset, source offset, length), ...

        Any number of them, in any order. Instead of handles there may be keys.

        Raises:
            ValueError: an unknown handle, or a piece outside of its region. Nothing is read then.
        """
        return SlimeReadWriteFuture(self._read(assign), self)

    def write(self, assign: Iterable[Sequence[Any]], stream: object = None) -> SlimeReadWriteFuture:
        """Begin to write; see `read`."""
        return SlimeReadWriteFuture(self._write(assign), self)

    def write_with_imm(
        self, assign: Iterable[Sequence[Any]], imm_data: int = 0, stream: object = None
    ) -> SlimeReadWriteFuture:
        """Write, and then tell the peer's `imm_recv` a number of 32 bits, with a sign or without.

        Raises:
            ValueError: as `read`, or the number has more bits.
        """
        return SlimeReadWriteFuture(self._write(assign, immediate(imm_data)), self)

    def imm_recv(self, stream: object = None) -> SlimeImmRecvFuture:
        """Wait for the number of a `write_with_imm`, also of one that has come before."""
        return self._expect_imm()

    def send(self, chunk: Sequence[int], stream_handler: object = None) -> SlimeSendFuture:
        """Begin to send (address, 0, length) of any memory of this process.

        Raises:
            ValueError: nothing is mapped there, or the offset, which the original ignores, is
                not 0.
        """
        return SlimeSendFuture(self._send(_memory(chunk)), self)

    def recv(self, chunk: Sequence[int], stream_handler: object = None) -> SlimeRecvFuture:
        """Begin to receive into (address, 0, length); the message may be shorter. See `send`."""
        return SlimeRecvFuture(self._recv(_memory(chunk)), self)

    def process(self) -> int:
        """Return 0: operations go on by themselves."""
        return 0


def _memory(chunk: Sequence[int]) -> torch.Tensor:
    address, offset, length = chunk
    if offset:
        raise ValueError(
            f"dlslime: offset {offset} of a message at {address:#x}: the original ignores it. Add "
            "it to the address"
        )
    return bytes_at(address, length)
