"""One end of a pair of processes: what the endpoints of all generations are made of."""

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

_AT_DROPPED_S = 1.0  # how long an endpoint that nobody holds any more waits for its peers
_LONGEST_S = 10.0
_logger = logging.getLogger("dlslime")

# What the generations call the arguments of `register_memory_region`.
_SYNONYMS = {
    "name": "mr_key",
    "mr_identifier": "mr_key",
    "data_ptr": "addr",
    "virtual_address": "addr",
    "length_bytes": "length",
}
_REGISTRATION = ("mr_key", "addr", "offset", "length")


def registration(values: Sequence[Any], named: dict[str, Any]) -> tuple[Key, int, int]:
    """Return key, address and bytes of the arguments of `register_memory_region`.

    They are (key, address, offset, length), without the offset in the oldest generation; by
    position, or by any of their names.

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
    """Return a number of 32 bits, with a sign or without, as one without.

    Raises:
        ValueError: it has more bits.
    """
    if not -(1 << 31) <= imm_data < 1 << 32:
        raise ValueError(f"dlslime: imm_data {imm_data} has more than 32 bits")
    return imm_data % (1 << 32)


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    """Return memory of this process, of processors or of a GPU, as a tensor that does not keep it.

    Raises:
        ValueError: nothing, or not all of it, is mapped there.
    """
    found: torch.Tensor = extension().bytes_at_address(address, nbytes)
    return found


class Core:
    """A connection to one peer, memory of this process, and memory of the peer's."""

    def __init__(self, regions: Regions | None = None) -> None:
        self._endpoint = one_sided.Endpoint("DLSlime's API")
        self._regions = Regions() if regions is None else regions
        self._remote = RemoteRegions()
        observability.note_regions(self._regions)
        owned = self._regions if regions is None else None
        # Programs drop an endpoint without `shutdown`, and then its memory: neither may be used
        # any more.
        self._end = weakref.finalize(self, _end, self._endpoint, owned)
        self._end.atexit = False
        self._owned = owned

    @property
    def mr_info(self) -> RegionsInfo:
        """This end's regions as JSON, an entry for each name; also to be called, as a method."""
        return RegionsInfo(self._regions.info())

    @property
    def endpoint_info(self) -> Info:
        """What the peer's `connect` takes, as JSON; also to be called, as a method.

        It has the address of this end and its regions so far.
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
        """Take the peer's `endpoint_info`. Once more adds regions that are new.

        Raises:
            ValueError: it is malformed, of another library or version, or of another peer than
                before. Nothing has changed then.
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
        """Leave the pair, and give the memory back. Does nothing the second time.

        What is under way fails.

        Raises:
            TimeoutError: the peer has not let go of a region; called again, this goes on.
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
        """Start what was refused as several transfers, if the reason was that pieces overlap.

        Raises:
            ValueError: the reason was another one. Nothing is moved then.
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
    """Release the memory of an endpoint, or of a pool, that was dropped; log what fails."""
    try:
        regions.release(_AT_DROPPED_S)
    except FAILURES as error:  # nobody is there to be told
        _logger.warning("memory of DLSlime's API that was dropped: %s", error)
