"""The oldest generation: the package `slime` of spring 2025, with coroutines.

endpoint = RDMAEndpoint(device_name=avaliable_nic()[0], ib_port=1, link_type="Ethernet")
endpoint.register_memory_region(mr_identifier="kv", virtual_address=..., length_bytes=...)
endpoint.connect_to(their_local_endpoint_info)
status = await endpoint.async_read_batch("kv", [8], [0], 8)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from dlslime_backend._untrusted import fields, parse_json
from dlslime_backend.compat.dlslime.core.futures import FAILED, FAILURES, GOOD, TIMED_OUT
from dlslime_backend.compat.dlslime.core.pair import Core
from dlslime_backend.compat.dlslime.devices import available_nic

_MOST_INFO = 64 << 20  # bytes of JSON
_logger = logging.getLogger("dlslime")

avaliable_nic = available_nic  # its name until April 2025


class Oldest(Core):
    """The calls of the oldest generation. Statuses: 0, 402 (timed out), 403 (failed, and logged).

    Offsets and lengths are in bytes.
    """

    @property
    def local_endpoint_info(self) -> str:
        """The JSON text for the peer's `connect_to`, with the regions registered so far."""
        return json.dumps(self.endpoint_info)

    def connect_to(self, info: str) -> None:
        """Take the peer's `local_endpoint_info`; raises ValueError as `connect`."""
        self.connect(parse_json(info, most_bytes=_MOST_INFO))

    async def async_read_batch(
        self,
        mr_key: str,
        target_offset: Sequence[int],
        source_offset: Sequence[int],
        length: int,
    ) -> int:
        """Read pieces of one length from the peer's region of a name into the local region.

        Args:
            mr_key: name of both regions.
            target_offset: offset of each piece in the peer's region.
            source_offset: offset of each piece in the local region.
            length: of every piece.

        Returns:
            The status.

        Raises:
            ValueError: the key is unknown, or a piece is outside of its region. Nothing is read
                then.
        """
        return await _status(
            self._read(
                [
                    (mr_key, mr_key, there, here, length)
                    for there, here in zip(target_offset, source_offset, strict=True)
                ]
            )
        )

    async def async_read(
        self, mr_key: str, target_offset: int, source_offset: int, length: int
    ) -> int:
        """Read one piece; see `async_read_batch`."""
        return await self.async_read_batch(mr_key, [target_offset], [source_offset], length)

    read_batch_async = async_read_batch  # their names from 30 March 2025
    read_async = async_read

    async def send_async(self, mr_key: str, offset: int, length: int) -> int:
        """Send part of a region as a message; return the status."""
        return await _status(self._send(self._regions.find(mr_key).bytes_at(offset, length)))

    async def recv_async(self, mr_key: str, offset: int, length: int) -> int:
        """Receive a message into part of a region; return the status."""
        return await _status(self._recv(self._regions.find(mr_key).bytes_at(offset, length)))

    def _take_regions(self, info: str) -> int:
        found = fields(parse_json(info, most_bytes=_MOST_INFO), "the peer's info", ["mr_info"])
        self._remote.add_all(found["mr_info"])()
        return GOOD


async def _status(transfer: Any) -> int:
    try:
        await transfer
    except TimeoutError:
        return TIMED_OUT
    except FAILURES as error:
        _logger.warning("%s", error)
        return FAILED
    return GOOD
