"""Contexts, memory pools and workers of today's generation: hints, but for a pool's memory."""

from __future__ import annotations

import weakref
from typing import Any

from dlslime_backend.compat.dlslime.core.info import RegionsInfo
from dlslime_backend.compat.dlslime.core.pair import release_dropped
from dlslime_backend.compat.dlslime.core.regions import Regions

LINK_TYPES = ("auto", "ib", "infiniband", "roce", "ethernet")


def require_link_type(link_type: str) -> None:
    """Raise ValueError where this is no type of link."""
    if str(link_type).lower() not in LINK_TYPES:
        raise ValueError(f"dlslime: link_type {link_type!r} is none of {', '.join(LINK_TYPES)}")


class RDMAContext:
    """A device that a program has chosen: a hint, since the NICs of a pair are (DLSLIME_NICS)."""

    def init(self, device_name: str, ib_port: int = 1, link_type: str = "auto") -> int:
        """Return 0.

        Raises:
            ValueError: there is no such type of link.
        """
        require_link_type(link_type)
        return 0

    def launch_future(self) -> None:
        """Do nothing: operations go on by themselves."""

    def stop_future(self) -> None:
        """Do nothing."""


class RDMAMemoryPool:
    """Memory that several endpoints share, under the same handles."""

    def __init__(
        self, context: RDMAContext | None = None, *, regions: Regions | None = None
    ) -> None:
        self.regions = Regions() if regions is None else regions
        if (
            regions is None
        ):  # endpoints of a pool that is dropped keep its regions, not their memory
            weakref.finalize(self, release_dropped, self.regions).atexit = False

    def register_memory_region(
        self, data_ptr: int, length: int, name: str | int | None = None
    ) -> int:
        """Register memory for all endpoints of this pool; returns its handle."""
        return self.regions.register(name, data_ptr, length)

    def unregister_memory_region(self, key: str | int) -> int:
        """Forget a region, by its name or handle; returns 0, or -1 where there is none."""
        return self.regions.unregister(key)

    def get_handle(self, name: str) -> int:
        """Return the handle of a name, or -1."""
        return self.regions.handle(name)

    def mr_info(self) -> dict[str, Any] | None:
        """Return the regions as JSON, or None where there are none."""
        return RegionsInfo(self.regions.info())()


class RDMAWorker:
    """A thread for endpoints there; here it only counts them: operations go on by themselves."""

    def __init__(self, device: str | int = "", id: int = 0) -> None:  # noqa: A002 - its name there
        self._endpoints = 0

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def add_endpoint(self, endpoint: object) -> int:
        """Return the number of this endpoint here: 0, 1, ..."""
        self._endpoints += 1
        return self._endpoints - 1
