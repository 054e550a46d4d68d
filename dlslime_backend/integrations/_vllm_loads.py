"""The decode side of a worker of the vLLM connector: loads of blocks from workers of prefill.

A load reads its blocks, and afterwards the prefill worker's list of expired leases. Loads from one
worker that wait for the list share one read of it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dlslime_backend import memory, one_sided
from dlslime_backend._untrusted import printable
from dlslime_backend.integrations._vllm_layout import Cache, LocalCache, deregister
from dlslime_backend.integrations._vllm_leases import contains, digest_of, no_digests
from dlslime_backend.integrations._vllm_scheduler import Load
from dlslime_backend.transfer import Transfer

# Limit of known workers of other engines. Each takes two descriptions, a copy of its list and an
# endpoint, and requests may name invented workers.
_MOST_PEERS = 1024
# TypeError and OverflowError: decoded input should raise neither, but an error must not end a step.
_FAILED = (ValueError, TypeError, OverflowError, TimeoutError, dist.DistBackendError)
_LOST = (TimeoutError, dist.DistBackendError)
_logger = logging.getLogger("dlslime.vllm")


@dataclass(eq=False)
class _Loading:
    """A load in progress."""

    request: str
    load: Load
    seconds: float  # that the load may take
    until: float
    late: bool = False  # given up

    def too_late(self) -> Exception:
        return ValueError(f"they have not come within {self.seconds:g} seconds")


class _Peer:
    """A worker of another engine, and the loads from it.

    Args:
        name: of the own worker, for error messages.
        own: the own cache.
        cache: description of the worker's cache, not trusted, but like the own cache.

    Raises:
        ValueError: the description has malformed addresses, or layers outside of its regions.
    """

    def __init__(self, name: str, own: LocalCache, cache: Cache) -> None:
        self._own = own
        self._cache = cache
        self._regions = [memory.import_region(region) for region in cache.regions]
        cache.require_inside([region.nbytes for region in self._regions])
        expired = memory.import_region(cache.expired)
        self._endpoint = one_sided.Endpoint(name)
        self._endpoint.connect(cache.hub)
        self._expired = no_digests()  # local copy of the list
        self._copy = memory.register(self._expired, "copy of expired leases")
        try:
            self._list = self._endpoint.prepare_read(self._copy, expired)
        except ValueError:
            deregister([self._copy])
            raise
        self.used = 0.0  # time of the last look-up or progress
        self.lost = False
        self._reading: list[tuple[_Loading, Transfer]] = []
        self._read: list[_Loading] = []  # to be checked
        self._checking: list[_Loading] = []
        self._check: Transfer | None = None
        self._telling: list[tuple[str, Transfer]] = []
        self._ended: list[tuple[_Loading, Exception | None]] = []

    @property
    def busy(self) -> bool:
        """Whether a load or a message is in progress."""
        return bool(self._reading or self._read or self._check or self._telling or self._ended)

    def begin(self, loading: _Loading) -> None:
        """Begin a load; `advance` returns its end."""
        try:
            self._reading.append((loading, self._start(loading.load)))
        except _FAILED as error:
            self._end(loading, error)

    def tell(self, request: str) -> None:
        """Send the message that ends the lease of a request of the peer's engine."""
        digest = torch.frombuffer(bytearray(digest_of(request)), dtype=torch.uint8)
        try:
            self._telling.append((request, self._endpoint.send(digest)))
        except _FAILED as error:
            self._untold(request, error)

    def advance(self, now: float) -> list[tuple[_Loading, Exception | None]]:
        """Make progress; return the loads that have ended, with the error of those that failed.

        No transfer writes into the blocks of an ended load.
        """
        self.used = now
        self._advance_reads(now)
        self._advance_check(now)
        telling, self._telling = self._telling, []
        for request, message in telling:
            if not message.done():
                self._telling.append((request, message))
            elif (error := _error_of(message)) is not None:
                self._untold(request, error)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Leave the worker; transfers in progress fail."""
        for _, read in self._reading:
            read.cancel()
        self._endpoint.close()
        deregister([self._copy])

    def _start(self, load: Load) -> Transfer:
        count = self._cache.num_blocks  # `there` came with the request: not trusted
        if max(load.there) >= count:
            raise ValueError(f"dlslime: block {max(load.there)} of a KV cache of {count} blocks")
        # Layers of one region make one part, in which neighbours are merged.
        columns: dict[tuple[int, int], Any] = defaultdict(lambda: ([], [], []))
        for mine, theirs in zip(self._own.cache.layers, self._cache.layers, strict=True):
            here, there, nbytes = columns[mine.region, theirs.region]
            here.append(mine.places(load.here))
            there.append(theirs.places(load.there))
            nbytes.append(np.full(len(here[-1]), mine.nbytes))
        return self._endpoint.read_many(
            (self._own.regions[ours], self._regions[region], tuple(map(np.concatenate, pieces)))
            for (ours, region), pieces in columns.items()
        )

    def _advance_reads(self, now: float) -> None:
        reading, self._reading = self._reading, []
        for loading, read in reading:
            if not read.done():
                if loading.until <= now:
                    loading.late = True
                    read.cancel()  # the blocks stay in use until the end
                self._reading.append((loading, read))
            elif loading.late:
                self._end(loading, loading.too_late())
            elif (error := _error_of(read)) is not None:
                self._end(loading, error)
            else:
                self._read.append(loading)

    def _advance_check(self, now: float) -> None:
        if self._check is not None and self._check.done():
            self._checked(_error_of(self._check))
        if self._check is None and self._read:
            self._checking, self._read = self._read, []
            try:
                self._check = self._list.start()
            except _FAILED as error:
                self._checked(error)
        for loads in (self._read, self._checking):
            for loading in [entry for entry in loads if entry.until <= now]:
                loads.remove(loading)
                self._end(loading, loading.too_late())
        if self._check is not None and not self._checking:
            self._check.cancel()  # no load waits for the check

    def _checked(self, error: Exception | None) -> None:
        loads, self._checking, self._check = self._checking, [], None
        for loading in loads:
            request = loading.load.source.request
            if error is None and contains(self._expired, request):
                self._end(loading, ValueError("they were given up meanwhile"))
                continue
            self._end(loading, error)
            if error is None:
                self.tell(request)

    def _end(self, loading: _Loading, error: Exception | None) -> None:
        self.lost = self.lost or isinstance(error, _LOST)
        self._ended.append((loading, error))

    def _untold(self, request: str, error: Exception) -> None:
        self.lost = self.lost or isinstance(error, _LOST)
        _logger.warning(
            "the prefill engine can't be told that the blocks of its request %s are not needed any "
            "more: %s",
            printable(request),
            printable(str(error)),
        )


class Loads:
    """The loads of one worker.

    Args:
        name: of the worker, for error messages.
        rank: of the worker.
        seconds: that a load may take.
    """

    def __init__(self, name: str, rank: int, seconds: float) -> None:
        self.own: LocalCache | None = None  # set before the first load
        self._name = name
        self._rank = rank
        self._seconds = seconds
        self._peers: dict[str, _Peer] = {}  # by encoded caches
        self._leaving: list[_Peer] = []  # lost, with loads in progress
        self._ended: set[str] = set()
        self._errors: set[int] = set()

    def begin(self, request: str, load: Load, now: float) -> None:
        """Begin a load; without blocks, only tell prefill that its blocks are not needed."""
        try:
            peer = self._peer(load.source.caches[self._rank], now)
        except _FAILED as error:
            self._fail(request, load, error)
            return
        if load.here:
            # With an equal lease, the other worker gives up the blocks at about the same time.
            peer.begin(_Loading(request, load, self._seconds, now + self._seconds))
        else:
            peer.tell(load.source.request)

    def take_ended(self, now: float) -> set[str]:
        """Make progress; return the requests whose loads have ended since the last call."""
        for peer in [*self._peers.values(), *self._leaving]:
            if not peer.busy:
                continue
            for loading, error in peer.advance(now):
                if error is None:
                    self._ended.add(loading.request)
                else:
                    self._fail(loading.request, loading.load, error)
        self._part()
        ended, self._ended = self._ended, set()
        return ended

    def take_errors(self) -> set[int]:
        """Return the blocks of all loads that have failed since the last call."""
        errors, self._errors = self._errors, set()
        return errors

    def close(self) -> None:
        """Leave all peers; loads in progress fail."""
        for peer in [*self._peers.values(), *self._leaving]:
            peer.close()
        self._peers.clear()
        self._leaving.clear()

    def _peer(self, encoded: str, now: float) -> _Peer:
        if encoded not in self._peers:
            if self.own is None:
                raise ValueError("dlslime: no KV caches are registered here")
            cache = Cache.decode(encoded)
            self.own.cache.require_like(cache)
            self._part()
            self._make_room()
            self._peers[encoded] = _Peer(self._name, self.own, cache)
        peer = self._peers[encoded]
        peer.used = now
        return peer

    def _make_room(self) -> None:
        if len(self._peers) + len(self._leaving) < _MOST_PEERS:
            return
        idle = [encoded for encoded, peer in self._peers.items() if not peer.busy]
        if not idle:
            raise ValueError(
                f"dlslime: blocks are read from {_MOST_PEERS} workers already, the most at a time"
            )
        self._peers.pop(min(idle, key=lambda encoded: self._peers[encoded].used)).close()

    def _part(self) -> None:
        # A later request connects again: an engine may have been unreachable for a moment only.
        for encoded in [encoded for encoded, peer in self._peers.items() if peer.lost]:
            self._leaving.append(self._peers.pop(encoded))
        # Peers are left once their loads have ended: leaving would end a load early, while its
        # blocks may still be written.
        for peer in [peer for peer in self._leaving if not peer.busy]:
            self._leaving.remove(peer)
            peer.close()

    def _fail(self, request: str, load: Load, error: Exception) -> None:
        _logger.warning(
            "the blocks of request %s can't be read from engine %s: %s",
            printable(request),
            printable(load.source.engine),
            printable(str(error)),
        )
        if load.here:
            self._ended.add(request)
            self._errors.update(load.here)


def _error_of(ended: Transfer) -> Exception | None:
    try:
        ended.wait(0)
    except _FAILED as error:
        return error
    return None
