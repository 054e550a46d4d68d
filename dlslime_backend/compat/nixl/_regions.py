"""Registered memory by address, of an agent or of a remote agent."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dlslime_backend import memory
from dlslime_backend.compat.nixl import _bindings as b

Integers = npt.NDArray[np.int64]
Memory = memory.Region | memory.RemoteRegion
M = TypeVar("M", memory.Region, memory.RemoteRegion)
Span = tuple[int, int]  # address, bytes


class Index:
    """Regions sorted by address; regions may overlap. Immutable."""

    def __init__(self, regions: Sequence[Memory]) -> None:
        self.regions = regions
        starts = np.array([region.address for region in regions], dtype=np.uint64)
        sizes = np.array([region.nbytes for region in regions], dtype=np.uint64)
        self._order = np.argsort(starts, kind="stable")
        self._starts, self._sizes = starts[self._order], sizes[self._order]
        # For each region: among the regions that begin no later, the region with the last end. If
        # any of the regions contains some bytes, the region with the last end does.
        ends = self._starts + self._sizes
        furthest = np.maximum.accumulate(ends)
        places = np.arange(len(regions))
        self._last = np.maximum.accumulate(np.where(ends == furthest, places, 0))

    def locate(self, table: b.Table, whose: str) -> tuple[Integers, Integers]:
        """Find region and offset of each descriptor.

        Args:
            table: (address, bytes, device), uint64 [N, 3].
            whose: name of the agent, for the error's text.

        Returns:
            Indices into `regions` and offsets in bytes, both int64 [N].

        Raises:
            nixlNotFoundError: a descriptor is in no region.
        """
        addresses, lengths = table[:, 0], table[:, 1]
        found = np.searchsorted(self._starts, addresses, side="right") - 1
        place = np.maximum(found, 0)
        if len(self.regions):
            place = np.where(self._holds(place, addresses, lengths), place, self._last[place])
        missing = np.flatnonzero(~self._holds(place, addresses, lengths))
        if len(missing):
            i = missing[0]
            raise b.nixlNotFoundError(
                f"{lengths[i]} bytes at address {addresses[i]:#x} (descriptor {i}) are in none of "
                f"the {len(self.regions)} regions that {whose} has registered"
            )
        if not len(table):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        offsets = (addresses - self._starts[place]).astype(np.int64)
        return self._order[place].astype(np.int64), offsets

    def _holds(
        self, place: Integers, addresses: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        if not len(self.regions):
            return np.zeros(len(addresses), dtype=bool)
        start, size = self._starts[place], self._sizes[place]
        # Unsigned: below the start, the difference is huge.
        beyond = np.subtract(addresses, start)
        result: npt.NDArray[np.bool_] = (
            (addresses >= start) & (lengths <= size) & (beyond <= size - np.minimum(lengths, size))
        )
        return result


class Regions(Generic[M]):
    """Regions in order of addition, each under a unique key. Any thread may use the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[Hashable, M] = {}
        self._keys: dict[Span, list[Hashable]] = {}  # several regions may have the same memory
        self._index: Index | None = None

    def add(self, found: Iterable[tuple[Hashable, M]]) -> None:
        """Add regions with new keys."""
        with self._lock:
            for key, region in found:
                self._all[key] = region
                self._keys.setdefault((region.address, region.nbytes), []).append(key)
            self._index = None

    def take(self, span: Span) -> tuple[Hashable, M] | None:
        """Remove a region of a piece of memory; return key and region, or None without a region."""
        with self._lock:
            keys = self._keys.get(span)
            if not keys:
                return None
            key = keys.pop()
            if not keys:
                del self._keys[span]
            self._index = None
            return key, self._all.pop(key)

    def get(self, key: Hashable) -> M | None:
        """Return the region of a key, or None."""
        return self._all.get(key)

    def of(self, spans: Iterable[Span]) -> list[M]:
        """Return the regions of pieces of memory, without duplicates."""
        with self._lock:
            return [
                self._all[key] for span in dict.fromkeys(spans) for key in self._keys.get(span, ())
            ]

    def index(self) -> Index:
        """Return the regions as an `Index`; made again after a region was added or removed."""
        with self._lock:
            if self._index is None:
                self._index = Index(tuple(self._all.values()))
            return self._index

    def all(self) -> list[M]:
        """Return all regions."""
        with self._lock:
            return list(self._all.values())


def of_exported(known: Regions[Any], exported: Iterable[bytes]) -> list[tuple[Hashable, Any]]:
    """Import the regions of another agent that are not in `known`, by their exported bytes."""
    fresh = [entry for entry in dict.fromkeys(exported) if known.get(entry) is None]
    return [(entry, memory.import_region(entry)) for entry in fresh]
