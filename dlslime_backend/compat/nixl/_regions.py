"""Registered memory by its addresses: what an agent has, or knows of another one."""

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
    """Some regions in order of their addresses, which may overlap. It never changes."""

    def __init__(self, regions: Sequence[Memory]) -> None:
        self.regions = regions
        starts = np.array([region.address for region in regions], dtype=np.uint64)
        sizes = np.array([region.nbytes for region in regions], dtype=np.uint64)
        self._order = np.argsort(starts, kind="stable")
        self._starts, self._sizes = starts[self._order], sizes[self._order]
        # Of all regions that begin no later than each one, the one that ends last: if any of them
        # holds some bytes, that one does.
        ends = self._starts + self._sizes
        furthest = np.maximum.accumulate(ends)
        places = np.arange(len(regions))
        self._last = np.maximum.accumulate(np.where(ends == furthest, places, 0))

    def locate(self, table: b.Table, whose: str) -> tuple[Integers, Integers]:
        """Find the region, and the offset in it, of each descriptor.

        Args:
            table: (address, bytes, device), uint64 [N, 3].
            whose: for the text of the error.

        Returns:
            Indices into `regions` and offsets in bytes, both int64 [N].

        Raises:
            nixlNotFoundError: one is not inside of any.
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
        # In unsigned numbers what is below the start is huge.
        beyond = np.subtract(addresses, start)
        result: npt.NDArray[np.bool_] = (
            (addresses >= start) & (lengths <= size) & (beyond <= size - np.minimum(lengths, size))
        )
        return result


class Regions(Generic[M]):
    """Regions, each under a key of its own, in the order in which they came. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[Hashable, M] = {}
        self._keys: dict[Span, list[Hashable]] = {}  # the same memory may be there several times
        self._index: Index | None = None

    def add(self, found: Iterable[tuple[Hashable, M]]) -> None:
        """Add regions whose keys are new."""
        with self._lock:
            for key, region in found:
                self._all[key] = region
                self._keys.setdefault((region.address, region.nbytes), []).append(key)
            self._index = None

    def take(self, span: Span) -> tuple[Hashable, M] | None:
        """Remove one of this memory, and return it and its key; None: there is none."""
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
        """Return the region under this key."""
        return self._all.get(key)

    def of(self, spans: Iterable[Span]) -> list[M]:
        """Return those of these pieces of memory, each once."""
        with self._lock:
            return [
                self._all[key] for span in dict.fromkeys(spans) for key in self._keys.get(span, ())
            ]

    def index(self) -> Index:
        """Return them for looking up addresses; made once for as long as none comes or goes."""
        with self._lock:
            if self._index is None:
                self._index = Index(tuple(self._all.values()))
            return self._index

    def all(self) -> list[M]:
        """Return all."""
        with self._lock:
            return list(self._all.values())


def of_exported(known: Regions[Any], exported: Iterable[bytes]) -> list[tuple[Hashable, Any]]:
    """Return regions of another agent that are not among `known`, by their exported bytes."""
    fresh = [entry for entry in dict.fromkeys(exported) if known.get(entry) is None]
    return [(entry, memory.import_region(entry)) for entry in fresh]
