"""One end of a pair of processes, the base of the endpoints of all generations."""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dlslime_backend import one_sided
from dlslime_backend._load import extension
from dlslime_backend.compat.dlslime.core import observability
from dlslime_backend.compat.dlslime.core.assignments import Parts, parts_of, without_overlap
from dlslime_backend.compat.dlslime.core.futures import FAILURES, Several, SlimeImmRecvFuture
from dlslime_backend.compat.dlslime.core.info import VERSION, Info, RegionsInfo, encoded
from dlslime_backend.compat.dlslime.core.info import parts_of as parts_of_info
from dlslime_backend.compat.dlslime.core.regions import Regions, RemoteRegions
from dlslime_backend.compat.dlslime.v0_0_2 import Key
from dlslime_backend.transfer import Transfer

_AT_DROPPED_S = 1.0  # how long a dropped endpoint waits for its peers
_LONGEST_S = 10.0
_logger = logging.getLogger("dlslime")

# Names of the arguments of `register_memory_region` in the different generations.
_SYNONYMS = {
    "name": "mr_key",
    "mr_identifier": "mr_key",
    "data_ptr": "addr",
    "virtual_address": "addr",
    "length_bytes": "length",
}
_REGISTRATION = ("mr_key", "addr", "offset", "length")


def registration(values: Sequence[Any], named: dict[str, Any]) -> tuple[Key, int, int]:
    """Return key, address and size in bytes from arguments of `register_memory_region`.

    The arguments are (key, address, offset, length), in the oldest generation without the offset;
    by position, or by any of their names.

    Raises:
        TypeError: arguments are missing, unknown or given twice.
    """
    names = _REGISTRATION if len(values) != 3 else ("mr_key", "addr", "length")
    found = dict(zip(names, values, strict=False))
    for name, value in named.items():
        meant = _SYNONYMS.get(name, name)
        if meant not in _REGISTRATION or meant in found:
            raise TypeError(
                f"dlslime: register_memory_region() got {name!r} more than once, or it "
                "has no such argument"
            )
        found[meant] = value
    if len(values) > len(names) or not {"mr_key", "addr", "length"} <= found.keys():
        raise TypeError(
            "dlslime: register_memory_region() takes (key, address, offset, length), not "
            f"{len(values)} values and the names {sorted(named)}"
        )
    key, offset = found["mr_key"], found.get("offset", 0)
    return (
        key if isinstance(key, str) else operator.index(key),
        operator.index(found["addr"]) + operator.index(offset),
        operator.index(found["length"]),
    )


def immediate(imm_data: int) -> int:
    """Return a signed or unsigned number of 32 bits as an unsigned number.

    Raises:
        ValueError: the number has more bits.
    """
    if not -(1 << 31) <= imm_data < 1 << 32:
        raise ValueError(f"dlslime: imm_data {imm_data} has more than 32 bits")
    return imm_data % (1 << 32)


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    """Return memory of this process, of CPUs or a GPU, as a uint8 tensor that does not own it.

    Raises:
        ValueError: the memory, or a part of it, is not mapped.
    """
    found: torch.Tensor = extension().bytes_at_address(address, nbytes)
    return found


class Core:
    """A pair with one peer: the endpoint, local regions, and regions of the peer.

    Args:
        regions: shared by the endpoints of a memory pool; None makes regions of the endpoint's own,
            released with the endpoint.
    """

    def __init__(self, regions: Regions | None = None) -> None:
        self._endpoint = one_sided.Endpoint("DLSlime's API")
        self._regions = Regions() if regions is None else regions
        self._remote = RemoteRegions()
        observability.note_regions(self._regions)
        owned = self._regions if regions is None else None
        # Programs drop an endpoint without `shutdown`, and its memory afterwards: the finalizer
        # releases both, so neither may be used later.
        self._end = weakref.finalize(self, _end, self._endpoint, owned)
        self._end.atexit = False
        self._owned = owned

    @property
    def mr_info(self) -> RegionsInfo:
        """The local regions as a dict for JSON, by name; also callable as a method."""
        return RegionsInfo(self._regions.info())

    @property
    def endpoint_info(self) -> Info:
        """The dict for the peer's `connect`, sent as JSON; also callable as a method.

        Contains the address of this end and the regions registered so far.
        """
        return Info(
            dlslime_backend=VERSION,
            address=encoded(self._endpoint.address),
            mr_info=self._regions.info(),
            rdma_info=[],  # queue pairs are made at the first operation
            io_info=[],
            msg_info=[],
        )

    def connect(self, info: dict[str, Any]) -> None:
        """Take the peer's `endpoint_info`; another call with the same peer adds new regions.

        Raises:
            ValueError: the info is malformed, of another library or version, or of another peer
                than before. Nothing has changed then.
        """
        self._require_open("connect")
        try:
            address, regions = parts_of_info(info)
            add = self._remote.add_all(regions)
        except ValueError as error:
            text = str(error).removeprefix("dlslime: ")
            raise ValueError(f"dlslime: the other endpoint's info: {text}") from error
        self._endpoint.connect(address)
        add()

    def shutdown(self) -> None:
        """Leave the pair, and release the memory. Does nothing the second time.

        Operations in progress fail.

        Raises:
            TimeoutError: the peer has not given a region back within 10 s; another call continues.
        """
        self._end.detach()
        self._endpoint.close()
        if self._owned is not None:
            self._owned.release(_LONGEST_S)

    def _register(self, key: Key | None, address: int, nbytes: int) -> int:
        self._require_open("register_memory_region")
        return self._regions.register(key, address, nbytes)

    def _parts(self, assign: Iterable[Sequence[Any]]) -> Parts:
        return parts_of(assign, self._regions, self._remote)

    def _read(self, assign: Iterable[Sequence[Any]]) -> Any:
        self._require_open("read")
        rows = list(assign)
        parts = self._parts(rows)
        transfer: Any
        try:
            transfer = self._endpoint.read_many(parts)
        except ValueError as refusal:
            transfer = self._start_apart(rows, refusal, write=False)
        return observability.noted("read", transfer, parts)

    def _write(self, assign: Iterable[Sequence[Any]], imm: int | None = None) -> Any:
        self._require_open("write")
        rows = list(assign)
        parts = self._parts(rows)
        transfer: Any
        try:
            transfer = self._endpoint.write_many(parts, imm)
        except ValueError as refusal:
            transfer = self._start_apart(rows, refusal, write=True)
            if imm is not None:
                transfer.wait()
                transfer = self._endpoint.write_many([], imm)
        return observability.noted("write" if imm is None else "write_with_imm", transfer, parts)

    def _start_apart(
        self, rows: list[Sequence[Any]], refusal: ValueError, *, write: bool
    ) -> Several:
        """Start refused assignments as several transfers, if overlap may be the reason.

        Raises:
            ValueError: the refusal, if the assignments don't overlap. Nothing is moved then.
        """
        lists = without_overlap(rows, write=write)
        if len(lists) < 2:
            raise refusal
        prepare = self._endpoint.prepare_write if write else self._endpoint.prepare_read
        prepared = [prepare(*part) for each in lists for part in self._parts(each)]
        return Several([each.start() for each in prepared])

    def _expect_imm(self) -> SlimeImmRecvFuture:
        transfer = observability.noted("imm_recv", self._endpoint.expect_imm())
        return SlimeImmRecvFuture(transfer, self)

    def _send(self, content: torch.Tensor) -> Transfer:
        return observability.noted("send", self._endpoint.send(content))

    def _recv(self, content: torch.Tensor) -> Transfer:
        return observability.noted("recv", self._endpoint.recv(content))

    def _require_open(self, call: str) -> None:
        if not self._end.alive:
            raise ValueError(f"dlslime: {call}() of an endpoint that was shut down")


def _end(endpoint: one_sided.Endpoint, regions: Regions | None) -> None:
    endpoint.close()
    if regions is not None:
        release_dropped(regions)


def release_dropped(regions: Regions) -> None:
    """Release the memory of a dropped endpoint or memory pool; log failures."""
    try:
        regions.release(_AT_DROPPED_S)
    except FAILURES as error:  # a finalizer has no caller
        _logger.warning("the memory of a dropped endpoint or pool is not released: %s", error)
