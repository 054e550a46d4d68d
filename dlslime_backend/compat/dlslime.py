"""The Python API of the original DLSlime, as LMDeploy's disaggregation uses it.

    endpoint = RDMAEndpoint(device_name=available_nic()[0], ib_port=1, link_type="RoCE")
    endpoint.register_memory_region(0, tensor.data_ptr(), 0, tensor.nbytes)
    info = endpoint.endpoint_info()              # a dict of JSON, to the other process
    endpoint.connect(their_info)
    endpoint.read([(0, 0, target_offset, source_offset, length)]).wait()

Differences that help: both endpoint classes take whatever route is best for the pair (the device's
name is a hint that is not needed: see DLSLIME_NICS), futures raise when a transfer has failed, and
can be awaited. Transfers of GPU memory begin when the current stream has come to them; `stream` is
not looked at.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from dlslime_backend import memory, one_sided
from dlslime_backend._untrusted import decode_base64, fields, items, shown, text
from dlslime_backend.transfer import Transfer

__all__ = ["Assignment", "NVLinkEndpoint", "RDMAEndpoint", "available_nic"]

Key: TypeAlias = int | str

_DEVICES = Path("/sys/class/infiniband")
_VERSION = 1
# What a peer's info may have.
_MOST_REGIONS = 1 << 16
_MOST_EXPORTED = 64 << 10  # bytes of an address, or of a region
_MOST_NAME = 4096  # characters of a key
_INTEGER = re.compile("-?[0-9]{1,40}", re.ASCII)


class Assignment(NamedTuple):
    """One piece of a transfer, in bytes.

    `target_offset` is in the peer's region and `source_offset` in ours, for reads and for writes.
    Plain tuples of the same five do as well.
    """

    mr_key: Key
    remote_mr_key: Key
    target_offset: int
    source_offset: int
    length: int


def available_nic() -> list[str]:
    """Return the names of this host's RDMA devices; ["auto"] where there are none."""
    names = sorted(path.name for path in _DEVICES.iterdir()) if _DEVICES.is_dir() else []
    return names or ["auto"]


class _Future:
    """A transfer under way. Any thread may wait."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def wait(self, timeout: float | None = None) -> int:
        """Block until it is over, without the GIL; returns 0.

        Raises:
            ValueError, TimeoutError, torch.distributed.DistBackendError: it has failed, and touches
                no memory any more.
        """
        self._transfer.wait(timeout)
        return 0

    def done(self) -> bool:
        """Tell whether it is over."""
        return self._transfer.done()

    def __await__(self) -> Any:
        return self._transfer.__await__()


class _ImmFuture(_Future):
    """A number that is to come with a write of the peer's."""

    _number: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Block until it has come; returns 0, and `imm_data` returns it."""
        self._number = self._transfer.wait(timeout)
        return 0

    def imm_data(self) -> int:
        """Return the number, once waited for."""
        if self._number is None:
            self.wait()
        assert self._number is not None
        return self._number


class _Endpoint:
    """One process's end of a pair. Each has its own regions, under keys of the caller's."""

    def __init__(self) -> None:
        self._endpoint = one_sided.Endpoint("DLSlime's API")
        self._regions: dict[Key, memory.Region] = {}
        self._ending: list[memory.Region] = []  # no key means them any more
        self._remote: dict[Key, memory.RemoteRegion] = {}

    def register_memory_region(self, mr_key: Key, addr: int, offset: int, length: int) -> int:
        """Let the peer read and write `length` bytes at address `addr` + `offset` (bytes).

        The memory, of processors or of a GPU, must stay until `shutdown`. A key that was registered
        before is replaced.

        Returns:
            How many were registered before it.
        """
        region = memory.register((addr + offset, length), str(mr_key))
        if mr_key in self._regions:  # transfers of the old one may be under way
            self._ending.append(self._regions[mr_key])
        self._regions[mr_key] = region
        return len(self._regions) - 1

    def mr_info(self) -> dict[str, str]:
        """Return this end's regions, as JSON."""
        return {_as_text(key): _encode(region.export()) for key, region in self._regions.items()}

    def endpoint_info(self) -> dict[str, Any]:
        """Return what the peer's `connect` takes, as JSON: the address, and the regions so far."""
        return {
            "dlslime_backend": _VERSION,
            "address": _encode(self._endpoint.address),
            "mr_info": self.mr_info(),
        }

    def connect(self, info: dict[str, Any]) -> None:
        """Take the peer's `endpoint_info`. Once more adds regions that are new.

        Raises:
            ValueError: it is malformed, of another library, or of another peer than before. Nothing
                has changed then.
        """
        address, regions = _endpoint_of(info)
        self._endpoint.connect(address)
        self._remote.update(regions)

    def register_remote_memory_region(self, mr_key: Key, info: str) -> int:
        """Take one region of the peer's `mr_info`; returns how many there were before.

        Raises:
            ValueError: it is something else.
        """
        self._remote[mr_key] = _region_of(info, mr_key)
        return len(self._remote) - 1

    def read(self, assign: Iterable[Sequence[Any]], stream: object = None) -> _Future:
        """Begin to read; `assign` are `Assignment`s, of any number and in any order.

        Raises:
            ValueError: an unknown key, or a piece outside of its region. Nothing is read then.
        """
        return _Future(self._endpoint.read_many(self._parts(assign)))

    def write(self, assign: Iterable[Sequence[Any]], stream: object = None) -> _Future:
        """Begin to write; see `read`."""
        return _Future(self._endpoint.write_many(self._parts(assign)))

    def write_with_imm(
        self, assign: Iterable[Sequence[Any]], imm_data: int = 0, stream: object = None
    ) -> _Future:
        """Write, and then tell the peer's `imm_recv` a number of 32 bits."""
        return _Future(self._endpoint.write_many(self._parts(assign), imm=imm_data))

    def imm_recv(self, stream: object = None) -> _ImmFuture:
        """Wait for the number of a `write_with_imm`, also of one that has come before."""
        return _ImmFuture(self._endpoint.expect_imm())

    def send(self, chunk: tuple[Key, int, int], stream_handler: object = None) -> _Future:
        """Begin to send (key, offset, length) of a region of ours."""
        return _Future(self._endpoint.send(self._memory(*chunk)))

    def recv(self, chunk: tuple[Key, int, int], stream_handler: object = None) -> _Future:
        """Begin to receive into (key, offset, length) of a region of ours."""
        return _Future(self._endpoint.recv(self._memory(*chunk)))

    def shutdown(self) -> None:
        """Leave the pair, and give the memory back. Does nothing the second time."""
        self._endpoint.close()
        self._ending += self._regions.values()
        self._regions.clear()
        while self._ending:
            self._ending[-1].deregister()
            self._ending.pop()

    def _memory(self, key: Key, offset: int, length: int) -> torch.Tensor:
        region: memory.Region = _known(self._regions, key, "local")
        if offset < 0 or length < 0:
            raise ValueError(f"dlslime: offset {offset} and length {length} of region {key!r}")
        return region.bytes_at(offset, length)

    def _parts(
        self, assign: Iterable[Sequence[Any]]
    ) -> list[tuple[memory.Region, memory.RemoteRegion, Any]]:
        rows = list(assign)
        if not rows:
            return []
        here, there, targets, sources, lengths = zip(*rows, strict=True)
        columns = [np.array(column) for column in (sources, targets, lengths)]
        pairs = list(zip(here, there, strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        # Not a step of Python's for each of what may be a hundred thousand pages.
        which = np.fromiter(map(numbers.__getitem__, pairs), np.int64, len(pairs))
        order = np.argsort(which, kind="stable")
        bounds = np.flatnonzero(np.diff(which[order])) + 1
        return [
            (
                _known(self._regions, mine, "local"),
                _known(self._remote, theirs, "remote"),
                tuple(column[chosen] for column in columns),
            )
            for (mine, theirs), chosen in zip(numbers, np.split(order, bounds), strict=True)
        ]


class RDMAEndpoint(_Endpoint):
    """See the module; the arguments are taken as hints, for the route is chosen by what works."""

    def __init__(
        self, device_name: str = "", ib_port: int = 1, link_type: str = "auto", num_qp: int = 1
    ) -> None:
        super().__init__()


class NVLinkEndpoint(_Endpoint):
    """The same for processes of one host."""


def _known(regions: dict[Key, Any], key: Key, which: str) -> Any:
    if key not in regions:
        raise ValueError(
            f"dlslime: there is no {which} region with key {key!r}; there are "
            f"{sorted(map(str, regions))}"
        )
    return regions[key]


# JSON's keys are texts.
def _as_text(key: Key) -> str:
    return f"int:{key}" if isinstance(key, int) else f"str:{key}"


def _as_key(found: object) -> Key:
    kind, _, value = text(found, "a key of mr_info", _MOST_NAME).partition(":")
    if kind == "str":
        return value
    if kind == "int" and _INTEGER.fullmatch(value):
        return int(value)
    raise ValueError(f"a key of mr_info is {shown(found)}, not int:NUMBER or str:TEXT")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _endpoint_of(info: object) -> tuple[bytes, dict[Key, memory.RemoteRegion]]:
    if not isinstance(info, dict) or info.get("dlslime_backend") != _VERSION:
        keys = f"keys {shown(list(islice(info, 5)))}" if isinstance(info, dict) else shown(info)
        raise ValueError(
            f"dlslime: the other endpoint's info is not of dlslime_backend ({keys}): both ends "
            "must use it"
        )
    try:
        found = fields(info, "it", ["address", "mr_info"])
        address = decode_base64(found["address"], "address", _MOST_EXPORTED)
        mr_info = items(list(fields(found["mr_info"], "mr_info").items()), "mr_info", _MOST_REGIONS)
        regions = {_as_key(key): entry for key, entry in mr_info}
        return address, {key: _region_of(entry, key) for key, entry in regions.items()}
    except ValueError as error:
        raise ValueError(f"dlslime: the other endpoint's info: {error}") from error


def _region_of(exported: object, key: Key) -> memory.RemoteRegion:
    what = f"dlslime: the remote region with key {shown(key)}"
    return memory.import_region(decode_base64(exported, what, _MOST_EXPORTED))
