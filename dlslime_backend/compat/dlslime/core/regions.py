"""Registered memory of an endpoint and of its peer, by names and by handles."""

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

# Limits of a peer's info.
_MOST_REGIONS = 1 << 16
_MOST_EXPORTED = 64 << 10  # bytes of a region
_MOST_NAME = 4096  # characters
_MOST_HANDLE = 1 << 32


class Table(Generic[R]):
    """Regions with handles 0, 1, ..., each with any number of names."""

    _which = ""

    def __init__(self) -> None:
        self._regions: list[R | None] = []
        self._names: dict[str, int] = {}

    def handle(self, name: str) -> int:
        """Return the handle of a name, or -1."""
        return self._names.get(name, -1)

    def named(self) -> Iterator[tuple[str, int, R]]:
        """Yield name, handle and region of every name."""
        for name, handle in self._names.items():
            region = self._regions[handle]
            if region is not None:
                yield name, handle, region

    def find(self, key: Key) -> R:
        """Return the region of a key in an assignment.

        An integer means the region registered with the integer as key, or else the region with the
        integer as handle. Both are the same if the keys are 0, 1, ... in order of registration.

        Raises:
            ValueError: no region has the key.
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
    """Memory of this process, shared by the endpoints of a memory pool."""

    _which = "local"

    def __init__(self) -> None:
        super().__init__()
        self._at: dict[int, int] = {}  # by address
        self._ending: list[memory.Region] = []  # without a name, to be released

    def register(self, key: Key | None, address: int, nbytes: int) -> int:
        """Register memory; return the handle.

        A known address with no more bytes than before adds a name to its region. A known name means
        the new memory from now on; its old region is released when no transfer uses the region any
        more.

        Args:
            key: name or integer; None makes a name from the address.
            address: in this process.
            nbytes: size of the memory.

        Raises:
            ValueError: the memory is not mapped.
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
        """Remove a region with all of its names; return 0, or -1 if there is no such region.

        The memory is no longer touched after the call.

        Raises:
            ValueError: transfers of this process use the region, which stays.
            TimeoutError: the peer has not given the region back within 10 s; the region stays.
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
        """Return a dict for JSON, with an entry for each name."""
        entries = {
            name: {
                "handle": handle,
                "mr_key": key_of(name),
                "name": name,
                "addr": region.address,
                "length": region.nbytes,
                "rkey": 0,  # access rights are in "region"
                "region": encoded(region.export()),
            }
            for name, handle, region in self.named()
        }
        return with_integers(entries)

    def count(self) -> int:
        """Return the number of registered regions, including regions about to be released."""
        return sum(region is not None for region in self._regions) + len(self._ending)

    def nbytes(self) -> int:
        """Return the bytes of all regions with a handle."""
        return sum(region.nbytes for region in self._regions if region is not None)

    def release(self, timeout: float) -> None:
        """Release all regions, and remove all names.

        Args:
            timeout: seconds for each region.

        Raises:
            ValueError: a transfer of this process uses a region.
            TimeoutError: the peer has not given a region back in time; another call continues.
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

    # The handle of a name if no other name has the handle, else -1.
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
            except (ValueError, TimeoutError):  # used by a local transfer or by a peer
                in_use.append(region)
        self._ending = in_use


class RemoteRegions(Table[memory.RemoteRegion]):
    """Memory of the peer."""

    _which = "remote"

    def add(self, key: Key, info: object) -> int:
        """Take a region of the peer's `mr_info`; return the local handle.

        Raises:
            ValueError: `info` is no region of dlslime_backend.
        """
        return self._add(name_of(key), _region_of(info, key))

    def add_all(self, found: object) -> Callable[[], None]:
        """Decode the peer's `mr_info`; return a function that adds the regions, by handle.

        Raises:
            ValueError: `mr_info` is malformed.
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
        raise ValueError(
            f"the handle of {shown(name)} is {shown(found)}, "
            f"not an integer from 0 to {_MOST_HANDLE - 1}"
        )
    return found


def _region_of(entry: object, key: Key) -> memory.RemoteRegion:
    what = f"dlslime: the remote region {shown(key)}"
    if not isinstance(entry, dict) or "region" not in entry:
        keys = shown(list(islice(entry, 5))) if isinstance(entry, dict) else shown(entry)
        raise ValueError(f"{what} is not of dlslime_backend (keys {keys}): both ends must use it")
    return memory.import_region(decode_base64(entry["region"], what, _MOST_EXPORTED))
