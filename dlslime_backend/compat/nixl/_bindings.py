"""The names of NIXL's compiled module that programs use: errors, lists, constants.

Lists of descriptors are arrays of (address, bytes, device), uint64 [N, 3].
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dlslime_backend._untrusted import U64, choice, items, parse_json

DEFAULT_COMM_PORT = 8888
NIXL_INIT_AGENT = ""
Table = npt.NDArray[np.uint64]
# Limits for descriptors from another process; a row takes 40 bytes.
_MOST_BYTES = 128 << 20
_MOST_ROWS = 2 << 20


class nixl_mem_t(Enum):  # noqa: N801 (NIXL's name, as all in the module)
    """Kinds of memory."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG = nixl_mem_t


class nixl_thread_sync_t(Enum):  # noqa: N801
    """Thread safety asked of an agent; ignored, since all agents are thread-safe."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


class nixlNotPostedError(Exception):  # noqa: N801, N818
    """The transfer was never posted, or is still in progress."""


class nixlInvalidParamError(Exception):  # noqa: N801
    """An argument is impossible."""


class nixlBackendError(Exception):  # noqa: N801
    """A transfer has failed."""


class nixlNotFoundError(Exception):  # noqa: N801
    """An agent or memory is unknown."""


class nixlMismatchError(Exception):  # noqa: N801
    """Metadata are of another library or version."""


class nixlNotAllowedError(Exception):  # noqa: N801
    """The call is not possible at the moment."""


class nixlRepostActiveError(Exception):  # noqa: N801
    """The transfer is still in progress."""


class nixlUnknownError(Exception):  # noqa: N801
    """An error of no other class."""


class nixlNotSupportedError(Exception):  # noqa: N801
    """Not supported by dlslime."""


class nixlRemoteDisconnectError(Exception):  # noqa: N801
    """The other agent has ended or can't be reached."""


class nixlCancelledError(Exception):  # noqa: N801
    """The transfer was cancelled."""


class nixlNoTelemetryError(Exception):  # noqa: N801
    """The agent was made without `capture_telemetry`."""


class nixlXferTelemetry:  # noqa: N801
    """Times of one transfer, in microseconds of a monotonic clock, and sizes."""

    def __init__(self) -> None:
        self.startTime = 0
        self.postDuration = 0
        self.xferDuration = 0
        self.totalBytes = 0
        self.descCount = 0


class _DList:
    """A list of descriptors for one kind of memory."""

    def __init__(self, type: nixl_mem_t, descs: Any = 0) -> None:
        if isinstance(descs, int):
            descs = ()
        self._type = type
        rows = descs if isinstance(descs, np.ndarray) else [tuple(entry[:3]) for entry in descs]
        self._room: Table = np.array(rows, dtype=np.uint64).reshape(-1, 3)
        self._count = len(self._room)  # rows in use; further rows are room for append()

    @property
    def table(self) -> Table:
        """The descriptors (address, bytes, device), uint64 [N, 3]."""
        return self._room[: self._count]

    @property
    def _table(self) -> Table:
        return self.table

    @_table.setter
    def _table(self, rows: Table) -> None:
        self._room, self._count = rows, len(rows)

    def getType(self) -> nixl_mem_t:
        """Return the kind of memory."""
        return self._type

    def descCount(self) -> int:
        """Return the number of descriptors."""
        return len(self._table)

    def isEmpty(self) -> bool:
        """Return whether the list is empty."""
        return len(self._table) == 0

    def append(self, desc: Sequence[Any]) -> None:
        """Add a descriptor at the end."""
        row = np.array(desc[:3], dtype=np.uint64)
        if self._count == len(self._room):
            more = np.empty((max(8, self._count), 3), dtype=np.uint64)
            self._room = np.concatenate([self._room, more])
        self._room[self._count] = row
        self._count += 1

    addDesc = append

    def remDesc(self, index: int) -> None:
        """Remove the descriptor at an index.

        Raises:
            IndexError: the index is out of range.
        """
        self._table = np.delete(self._table, self._place(index), axis=0)

    def index(self, desc: Sequence[Any]) -> int:
        """Return the index of a descriptor, or -1."""
        found = np.flatnonzero((self._table == np.array(desc[:3], dtype=np.uint64)).all(axis=1))
        return int(found[0]) if len(found) else -1

    def clear(self) -> None:
        """Remove all descriptors."""
        self._table = self._table[:0]

    def _place(self, index: int) -> int:
        if not 0 <= index < len(self._table):
            raise IndexError(f"descriptor {index} of {len(self._table)}")
        return index

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(int(number) for number in self._table[self._place(index)])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _DList)
            and type(self) is type(other)
            and self._type == other._type
            and np.array_equal(self._table, other._table)
        )

    __hash__ = None  # type: ignore[assignment]


class nixlXferDList(_DList):  # noqa: N801
    """Descriptors for transfers."""


class nixlRegDList(_DList):  # noqa: N801
    """Descriptors for registration."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (*super().__getitem__(index), b"")

    def trim(self) -> nixlXferDList:
        """Return the descriptors as a list for transfers."""
        return nixlXferDList(self._type, self._table)


_KINDS: dict[str, type[nixlXferDList] | type[nixlRegDList]] = {
    "reg": nixlRegDList,
    "xfer": nixlXferDList,
}


def serialized(descs: _DList) -> bytes:
    """Return a list as bytes, for another process."""
    kind = "reg" if isinstance(descs, nixlRegDList) else "xfer"
    return json.dumps([kind, descs.getType().name, descs.table.tolist()]).encode()


def deserialized(content: bytes) -> nixlXferDList | nixlRegDList:
    """Return the list from the bytes of `serialized`; the bytes are not trusted.

    Raises:
        nixlMismatchError: the bytes are no list of descriptors.
    """
    try:
        found = parse_json(content, most_bytes=_MOST_BYTES, most_values=6 * _MOST_ROWS)
        kind, memory, rows = items(found, "it", 3, 3)
        kind = choice(kind, "the kind of list", list(_KINDS))
        memory = choice(memory, "the kind of memory", list(nixl_mem_t.__members__))
        return _KINDS[kind](nixl_mem_t[memory], _table_of(rows))
    except ValueError as error:
        raise nixlMismatchError(f"no descriptors of dlslime's NIXL module: {error}") from error


def _table_of(found: object) -> Table:
    # No Python loop over rows: there may be a million.
    rows = items(found, "the list of descriptors", _MOST_ROWS)
    if not rows:
        return np.empty((0, 3), dtype=np.uint64)
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {3}:
        raise ValueError("a descriptor is not a list of 3 integers")
    numbers = list(chain.from_iterable(rows))
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers) > U64:
        raise ValueError(f"a number of a descriptor is not an integer from 0 to {U64}")
    return np.array(rows, dtype=np.uint64)
