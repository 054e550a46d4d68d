"""Memory that an endpoint has registered, and its peer's: by names and by handles."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from dlslime_backend import memory
from dlslime_backend._untrusted import decode_base64, fields, items, shown, text
from dlslime_backend.compat.dlslime.core.info import encoded
from dlslime_backend.compat.dlslime.v0_0_2 import Key, key_of, name_of, with_integers

R = TypeVar("R", memory.Region, memory.RemoteRegion)

# What a peer's info may have.
_MOST_REGIONS = 1 << 16
_MOST_EXPORTED = 64 << 10  # bytes of a region
_MOST_NAME = 4096  # characters
_MOST_HANDLE = 1 << 32


class Table(Generic[R]):
    """Regions under handles 0, 1, ..., each with any number of names."""

    _which = ""

    def __init__(self) -> None:
        self._regions: list[R | None] = []
        self._names: dict[str, int] = {}

    def handle(self, name: str) -> int:
        """Return the handle of a name, or -1."""
        return self._names.get(name, -1)

    def named(self) -> Iterator[tuple[str, int, R]]:
        """All names, with the handle and region of each."""
        for name, handle in self._names.items():
            region = self._regions[handle]
            if region is not None:
                yield name, handle, region

    def find(self, key: Key) -> R:
        """Return the region that an entry of an assignment means.

        An integer that was registered as a key is that key, and else a handle. They are the same
        where keys are 0, 1, ... in order.

        Raises:
            ValueError: there is none.
        """
        region = self._region(self._handle_of(key))
        if region is None:
            raise ValueError(
                f"dlslime: there is no {self._which} region {key!r} (handles: "
                f"{len(self._regions)}, names: {shown(sorted(self._names))})"
            )
        return region

    def _handle_of(self, key: Key) -> int:
        return self._names.get(name_of(key), -1 if isinstance(key, str) else operator.index(key))

    def _region(self, handle: int) -> R | None:
        return self._regions[handle] if 0 <= handle < len(self._regions) else None

    def _put(self, name: str, region: R, handle: int = -1) -> int:
        if handle < 0:
            handle = len(self._regions)
            self._regions.append(region)
        self._regions[handle] = region
        self._names[name] = handle
        return handle


class Regions(Table[memory.Region]):
    """Memory of this process; endpoints of one memory pool share it."""

    _which = "local"

    def __init__(self) -> None:
        super().__init__()
        self._at: dict[int, int] = {}  # addresses to handles
        self._ending: list[memory.Region] = []  # no name means them any more

    def register(self, key: Key | None, address: int, nbytes: int) -> int:
        """Register memory; return its handle.

        The same address with no more bytes is the same region, under one name more. A known name
        means the new memory from now on: what it meant before is released when no transfer needs
        it any more.
        """
        self._release_ended()
        handle = self._at.get(address, -1)
        known = self._region(handle)
        key = f"memory at {address:#x}" if key is None else key
        name = name_of(key)
        if known is not None and nbytes <= known.nbytes:
            self._rename(name, handle)
            return handle
        region = memory.register((address, nbytes), str(key))
        if handle < 0:
            handle = self._own_handle(name)
        else:
            self._rename(name, handle)
        self._replace(handle)
        handle = self._put(name, region, handle)
        self._at[address] = handle
        return handle

    def unregister(self, key: Key) -> int:
        """Take a region back, with all of its names; return 0, or -1 if there is none.

        Nothing touches its memory when this returns.

        Raises:
            ValueError: transfers of this process with it go on; it stays.
            TimeoutError: a peer has not let go of it; it stays.
        """
        handle = self._handle_of(key)
        region = self._region(handle)
        if region is None:
            return -1
        region.deregister()
        self._regions[handle] = None
        self._at.pop(region.address, None)
        self._names = {name: at for name, at in self._names.items() if at != handle}
        return 0

    def info(self) -> dict[str, Any]:
        """Return an entry for each name, as JSON."""
        entries = {
            name: {
                "handle": handle,
                "mr_key": key_of(name),
                "name": name,
                "addr": region.address,
                "length": region.nbytes,
                "rkey": 0,  # the right to it is in the region's own bytes
                "region": encoded(region.export()),
            }
            for name, handle, region in self.named()
        }
        return with_integers(entries)

    def count(self) -> int:
        """Return how many regions are registered, with those that are about to be released."""
        return sum(region is not None for region in self._regions) + len(self._ending)

    def nbytes(self) -> int:
        """Return how many bytes they have."""
        return sum(region.nbytes for region in self._regions if region is not None)

    def release(self, timeout: float) -> None:
        """Release all of them, and forget all names.

        Raises:
            TimeoutError: a peer has not let go of one within so many seconds; called again, this
                goes on.
        """
        for handle in range(len(self._regions)):
            self._retire(handle)
        self._names.clear()
        self._regions.clear()
        while self._ending:
            self._ending[-1].deregister(timeout)
            self._ending.pop()

    def _rename(self, name: str, handle: int) -> None:
        before = self._names.get(name, handle)
        self._names[name] = handle
        if before != handle and before not in self._names.values():
            self._replace(before)

    # The handle of a name that no other name has, else -1.
    def _own_handle(self, name: str) -> int:
        handle = self._names.get(name, -1)
        return handle if list(self._names.values()).count(handle) == 1 else -1

    def _replace(self, handle: int) -> None:
        if handle >= 0:
            self._retire(handle)
            self._release_ended()

    def _retire(self, handle: int) -> None:
        region, self._regions[handle] = self._regions[handle], None
        if region is not None:
            self._ending.append(region)
            if self._at.get(region.address) == handle:
                del self._at[region.address]

    def _release_ended(self) -> None:
        in_use = []
        for region in self._ending:
            try:
                region.deregister(timeout=0)
            except (ValueError, TimeoutError):  # a transfer of ours or of a peer's needs it
                in_use.append(region)
        self._ending = in_use


class RemoteRegions(Table[memory.RemoteRegion]):
    """Memory of the peer."""

    _which = "remote"

    def add(self, key: Key, info: object) -> int:
        """Take one region of the peer's `mr_info`; return its handle here.

        Raises:
            ValueError: it is something else.
        """
        return self._add(name_of(key), _region_of(info, key))

    def add_all(self, found: object) -> Callable[[], None]:
        """Decode the peer's `mr_info`; return what adds all of it, by ascending handle.

        Raises:
            ValueError: it is malformed.
        """
        entries = items(list(fields(found, "mr_info").items()), "mr_info", _MOST_REGIONS)
        decoded = []
        for key, entry in entries:
            name = text(key, "a key of mr_info", _MOST_NAME)
            decoded.append((_handle_of(entry, name), name, _region_of(entry, name)))

        def add() -> None:
            handles: dict[int, int] = {}
            for theirs, name, region in sorted(decoded, key=operator.itemgetter(0)):
                known = self._names.get(name, handles.get(theirs, -1))
                handles[theirs] = self._put(name, region, known)

        return add

    def _add(self, name: str, region: memory.RemoteRegion) -> int:
        return self._put(name, region, self._names.get(name, -1))


def _handle_of(entry: object, name: str) -> int:
    found = fields(entry, f"the entry of {shown(name)}", ["handle"])["handle"]
    if type(found) is not int or not 0 <= found < _MOST_HANDLE:
        raise ValueError(f"the handle of {shown(name)} is {shown(found)}, not a small integer")
    return found


def _region_of(entry: object, key: Key) -> memory.RemoteRegion:
    what = f"dlslime: the remote region {shown(key)}"
    if not isinstance(entry, dict) or "region" not in entry:
        keys = shown(list(islice(entry, 5))) if isinstance(entry, dict) else shown(entry)
        raise ValueError(f"{what} is not of dlslime_backend (keys {keys}): both ends must use it")
    return memory.import_region(decode_base64(entry["region"], what, _MOST_EXPORTED))
