"""`rdma_endpoint` and `rdma_buffer` of versions 0.0.1.post: messages of unregistered memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dlslime_backend.compat.dlslime.core.pair import Core, bytes_at
from dlslime_backend.transfer import Transfer


class rdma_endpoint(Core):  # noqa: N801 - the original's name
    """One end of a pair; the arguments are hints without effect."""

    def __init__(
        self, device: str = "", port: int = 1, link_type: str = "auto", num_qp: int = 1
    ) -> None:
        super().__init__()

    def get_data_context_info(self) -> dict[str, Any]:
        """Return the first argument for the peer's `context_connect`, a dict for JSON."""
        return self.endpoint_info()

    def get_meta_context_info(self) -> dict[str, Any]:
        """Return the second argument for the peer's `context_connect`, an empty dict."""
        return {}

    def context_connect(self, data: dict[str, Any], meta: dict[str, Any]) -> None:
        """Take the results of the peer's two calls; see `Core.connect`."""
        self.connect(data)


class rdma_buffer:  # noqa: N801 - the original's name
    """Pieces of memory, sent and received as one message.

    Args:
        endpoint: the connected endpoint.
        pointers: address of the memory of each piece.
        offsets: offset of each piece in its memory, in bytes.
        sizes: length of each piece, in bytes.

    Raises:
        ValueError: a piece is not mapped, or the lists have unequal lengths.
    """

    def __init__(
        self,
        endpoint: rdma_endpoint,
        pointers: Sequence[int],
        offsets: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        self._endpoint = endpoint
        self._pieces = [
            bytes_at(pointer + offset, size)
            for pointer, offset, size in zip(pointers, offsets, sizes, strict=True)
        ]
        self._sent: Transfer | None = None
        self._received: tuple[Transfer, torch.Tensor] | None = None

    def send(self) -> None:
        """Begin to send the pieces, one after the other in one message."""
        whole = self._pieces[0] if len(self._pieces) == 1 else torch.cat(self._pieces)
        self._sent = self._endpoint._send(whole)

    def recv(self) -> None:
        """Begin to receive; the pieces have their bytes after `wait_recv`."""
        whole = self._pieces[0]
        if len(self._pieces) > 1:
            whole = torch.empty_like(torch.cat(self._pieces))
        self._received = self._endpoint._recv(whole), whole

    def wait_send(self) -> bool:
        """Block until the message is sent; return True.

        Raises:
            ValueError: `send` was not called.
            TimeoutError, torch.distributed.DistBackendError: the send failed.
        """
        if self._sent is None:
            raise ValueError("dlslime: wait_send() of a buffer that was not sent")
        self._sent.wait()
        return True

    def wait_recv(self) -> bool:
        """Block until the pieces have been received; return True.

        Raises:
            ValueError: `recv` was not called.
            TimeoutError, torch.distributed.DistBackendError: the receive failed.
        """
        if self._received is None:
            raise ValueError("dlslime: wait_recv() of a buffer that does not receive")
        transfer, whole = self._received
        transfer.wait()
        if len(self._pieces) > 1:
            sizes = [piece.numel() for piece in self._pieces]
            for piece, part in zip(self._pieces, whole.split(sizes), strict=True):
                piece.copy_(part)
        return True
