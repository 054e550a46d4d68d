"""Which bytes a transfer moves: the original's assignments, as pieces of regions."""

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
    """One piece of a transfer, in bytes.

        Assignment(key, target_offset, source_offset, length)              # a key of both ends
        Assignment(key, remote_key, target_offset, source_offset, length)
        Assignment(mr_key=..., target_offset=..., source_offset=..., length=...)

    `target_offset` is in the peer's region and `source_offset` in ours, for reads and for writes.
    """

    __slots__ = ()

    def __new__(cls, *values: Any, **named: Any) -> Assignment:
        """Make one of four or five values, or of named ones; see the class."""
        if len(values) == 4 and not named:
            values = (values[0], *values)
        elif not values and "mr_key" in named:
            named.setdefault("remote_mr_key", named["mr_key"])
        return super().__new__(cls, *values, **named)


def parts_of(assign: Iterable[Sequence[Any]], here: Regions, there: RemoteRegions) -> Parts:
    """Return assignments as parts of one transfer, a part for each pair of regions.

    Raises:
        ValueError: a key or a handle is unknown, or an entry has not five fields.
    """
    rows = list(assign)
    if len(rows) == 1:  # what latency is measured with
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
    # Not a step of Python's for each of what may be a hundred thousand pages.
    which = np.fromiter(map(numbers.__getitem__, pairs), np.int64, len(pairs))
    order = np.argsort(which, kind="stable")
    bounds = np.flatnonzero(np.diff(which[order])) + 1
    return [
        (here.find(our), there.find(their), tuple(column[chosen] for column in columns))
        for (our, their), chosen in zip(numbers, np.split(order, bounds), strict=True)
    ]


def without_overlap(rows: list[Sequence[Any]], *, write: bool) -> list[list[Sequence[Any]]]:
    """Divide assignments so that those of one list don't overlap where they are written.

    Benchmarks of the original read a batch of pieces into one place; a transfer of ours refuses
    that, and several transfers may.
    """
    region, offset = (1, 2) if write else (0, 3)
    lists: list[list[Sequence[Any]]] = []
    ends: list[tuple[Any, int]] = []  # of each list: its last region, and where that piece ends
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
