"""Translates the original's assignments into pieces of regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dlslime_backend import memory
from dlslime_backend.compat.dlslime.core.regions import Regions, RemoteRegions
from dlslime_backend.compat.dlslime.v0_0_2 import Key

Parts = list[tuple[memory.Region, memory.RemoteRegion, Any]]


class _Fields(NamedTuple):
    mr_key: Key
    remote_mr_key: Key
    target_offset: int
    source_offset: int
    length: int


class Assignment(_Fields):
    """One piece of a transfer; offsets and length are in bytes.

        Assignment(key, target_offset, source_offset, length)              # a key of both ends
        Assignment(key, remote_key, target_offset, source_offset, length)
        Assignment(mr_key=..., target_offset=..., source_offset=..., length=...)

    `target_offset` is in the peer's region and `source_offset` in the local region, for reads and
    for writes.
    """

    __slots__ = ()

    def __new__(cls, *values: Any, **named: Any) -> Assignment:
        """Make an assignment of four or five values, or of named values; see the class."""
        if len(values) == 4 and not named:
            values = (values[0], *values)
        elif not values and "mr_key" in named:
            named.setdefault("remote_mr_key", named["mr_key"])
        return super().__new__(cls, *values, **named)


def parts_of(assign: Iterable[Sequence[Any]], here: Regions, there: RemoteRegions) -> Parts:
    """Return assignments as parts of one transfer, one part for each pair of regions.

    Args:
        assign: (key, remote key, target offset, source offset, length) of each piece; keys may be
            handles.
        here: regions of this process.
        there: regions of the peer.

    Raises:
        ValueError: a key or handle is unknown, or an entry does not have five fields.
    """
    rows = list(assign)
    if len(rows) == 1:  # fast path: tests of latency
        our, their, target, source, length = _checked(rows)[0]
        return [(here.find(our), there.find(their), [(source, target, length)])]
    return _grouped(_checked(rows), here, there) if rows else []


def _checked(rows: list[Sequence[Any]]) -> list[Sequence[Any]]:
    sizes = set(map(len, rows))
    if sizes != {5}:
        raise ValueError(
            f"dlslime: an assignment has {min(sizes - {5})} fields, not (key, remote key, target "
            "offset, source offset, length)"
        )
    return rows


def _grouped(rows: list[Sequence[Any]], here: Regions, there: RemoteRegions) -> Parts:
    mine, theirs, targets, sources, lengths = zip(*rows, strict=True)
    columns = [np.array(column) for column in (sources, targets, lengths)]
    pairs = list(zip(mine, theirs, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    # No Python loop over pages: a batch may have a hundred thousand.
    which = np.fromiter(map(numbers.__getitem__, pairs), np.int64, len(pairs))
    order = np.argsort(which, kind="stable")
    bounds = np.flatnonzero(np.diff(which[order])) + 1
    return [
        (here.find(our), there.find(their), tuple(column[chosen] for column in columns))
        for (our, their), chosen in zip(numbers, np.split(order, bounds), strict=True)
    ]


def without_overlap(rows: list[Sequence[Any]], *, write: bool) -> list[list[Sequence[Any]]]:
    """Divide assignments into lists without overlap where bytes are written.

    Benchmarks of the original read a batch of pieces into one place. A transfer of dlslime refuses
    the overlap, but several transfers may overlap.
    """
    region, offset = (1, 2) if write else (0, 3)
    lists: list[list[Sequence[Any]]] = []
    ends: list[tuple[Any, int]] = []  # by list: last region, and end of its last piece
    for row in sorted(rows, key=lambda row: (str(row[region]), row[offset])):
        free = (
            number
            for number, (last, end) in enumerate(ends)
            if last != row[region] or end <= row[offset]
        )
        number = next(free, len(lists))
        if number == len(lists):
            lists.append([])
            ends.append((None, 0))
        lists[number].append(row)
        ends[number] = (row[region], row[offset] + row[4])
    return lists
