"""Contexts, memory pools and workers of today's generation: hints, except for a pool's memory."""

from __future__ import annotations

import weakref
from typing import Any

from dlslime_backend.compat.dlslime.core.info import RegionsInfo
from dlslime_backend.compat.dlslime.core.pair import release_dropped
from dlslime_backend.compat.dlslime.core.regions import Regions

LINK_TYPES = ("auto", "ib", "infiniband", "roce", "ethernet")


def require_link_type(link_type: str) -> None:
    """Require a type of link that the original has.

    Raises:
        ValueError: the type of link is unknown.
    """
    if str(link_type).lower() not in LINK_TYPES:
        raise ValueError(f"dlslime: link_type {link_type!r} is none of {', '.join(LINK_TYPES)}")


class RDMAContext:
    """A device chosen by the program: a hint without effect (use DLSLIME_NICS)."""

    def init(self, device_name: str, ib_port: int = 1, link_type: str = "auto") -> int:
        """Check the type of link; return 0.

        Raises:
            ValueError: the type of link is unknown.
        """
        require_link_type(link_type)
        return 0

    def launch_future(self) -> None:
        """Do nothing: operations proceed by themselves."""

    def stop_future(self) -> None:
        """Do nothing."""


class RDMAMemoryPool:
    """Memory shared by several endpoints, under the same handles."""

    def __init__(
        self, context: RDMAContext | None = None, *, regions: Regions | None = None
    ) -> None:
        self.regions = Regions() if regions is None else regions
        if (
            regions is None
        ):  # a dropped pool releases the memory, although its endpoints may still exist
            weakref.finalize(self, release_dropped, self.regions).atexit = False

    def register_memory_region(
        self, data_ptr: int, length: int, name: str | int | None = None
    ) -> int:
        """Register memory for all endpoints of the pool; return the handle.

        Args:
            data_ptr: address in this process.
            length: in bytes.
            name: None makes a name from the address.

        Raises:
            ValueError: the memory is not mapped.
        """
        return self.regions.register(name, data_ptr, length)

    def unregister_memory_region(self, key: str | int) -> int:
        """Remove a region, by name or handle; return 0, or -1 if there is no such region.

        Raises:
            ValueError: a transfer of this process uses the region.
            TimeoutError: the peer has not given the region back in time.
        """
        return self.regions.unregister(key)

    def get_handle(self, name: str) -> int:
        """Return the handle of a name, or -1."""
        return self.regions.handle(name)

    def mr_info(self) -> dict[str, Any] | None:
        """Return the regions as a dict for JSON, or None without regions."""
        return RegionsInfo(self.regions.info())()


class RDMAWorker:
    """A thread for endpoints in the original; here only a counter."""

    def __init__(self, device: str | int = "", id: int = 0) -> None:  # noqa: A002 - original name
        self._endpoints = 0

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def add_endpoint(self, endpoint: object) -> int:
        """Return the number of the endpoint, counted per worker: 0, 1, ..."""
        self._endpoints += 1
        return self._endpoints - 1
