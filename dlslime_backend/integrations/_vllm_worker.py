"""The worker's side of the vLLM connector: loads blocks, and lends blocks to other workers.

A load reads its blocks, and afterwards the lending worker's list of requests given up. A worker
writes a request into the list before it frees the blocks, so a load from blocks in new use is
always detected.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dlslime_backend._untrusted import printable, shown
from dlslime_backend.compat.nixl import _bindings as nixl
from dlslime_backend.compat.nixl import nixl_agent, nixl_xfer_handle
from dlslime_backend.compat.nixl._remote import Metadata
from dlslime_backend.integrations._vllm_layout import (
    Addresses,
    Cache,
    device_of,
    layers_of,
    storages,
)
from dlslime_backend.integrations._vllm_scheduler import MOST_NAME, Load, Plan

# Length of the list of requests given up. A load misses its entry if 4,096 further requests are
# given up while the blocks are read.
_SLOTS = 4096
# Limit of requests announced as read by a peer, but without a lease: a peer may announce requests
# that never existed.
_MOST_EARLY = 1 << 16
# Limit of known workers of other engines. Each takes two descriptions, a copy of its list and an
# endpoint, and requests may name invented workers.
_MOST_PEERS = 1024
_FAILED = (
    ValueError,
    # TypeError and OverflowError: decoded input should raise neither, but an error must not end a
    # step.
    TypeError,
    OverflowError,
    dist.DistBackendError,
    nixl.nixlBackendError,
    nixl.nixlCancelledError,
    nixl.nixlInvalidParamError,
    nixl.nixlMismatchError,
    nixl.nixlNotFoundError,
    nixl.nixlRemoteDisconnectError,
)
_LOST = (dist.DistBackendError, nixl.nixlRemoteDisconnectError)
# One side of a transfer: addresses, bytes at each address; and the index of the GPU, or -1 for
# CPUs.
_Side = tuple[Sequence[tuple[Addresses, int]], int]
_logger = logging.getLogger("dlslime.vllm")


def _digest(request: str) -> int:
    return int.from_bytes(hashlib.blake2b(request.encode(), digest_size=8).digest(), "little")


@dataclass(eq=False)
class _Peer:
    """The worker of another engine with the rank of this worker."""

    cache: Cache
    agent: str
    expired: Addresses  # local copy of the peer's list of requests given up
    reading: dict[str, tuple[Load, nixl_xfer_handle]] = field(default_factory=dict)
    read: dict[str, Load] = field(default_factory=dict)  # to be checked
    checking: dict[str, Load] = field(default_factory=dict)
    check: nixl_xfer_handle | None = None
    used: float = 0.0  # time of the last read or look-up

    @property
    def busy(self) -> bool:
        """Whether a load from the peer is in progress."""
        return bool(self.reading or self.read or self.checking or self.check)


class Worker:
    """The memory, loads and leases of one worker. Not thread-safe: vLLM calls from one thread."""

    def __init__(self, engine: str, rank: int, block_size: int, lease: float) -> None:
        self._rank = rank
        self._block_size = block_size
        self._lease = lease
        # A new name at each start: peers must tell the agent from its predecessor.
        name = f"{engine} {rank} {uuid.uuid4().hex[:8]}"
        self._agent: nixl_agent | None = nixl_agent(name)
        self._expired: Addresses = np.zeros(_SLOTS, dtype=np.uint64)
        self._expirations = 0
        self._spare: list[Addresses] = []  # registered, for copies of lists
        self._caches: dict[str, torch.Tensor] = {}
        self._peers: dict[str, _Peer] = {}  # by encoded caches
        self._leaving: list[_Peer] = []  # lost, with transfers in progress
        self._leases: dict[str, float] = {}  # request -> end
        self._until: dict[str, float] = {}  # load -> when it is given up
        # Announced as read, but not leased yet: digest -> time. Names may be long and invented.
        self._early: dict[int, float] = {}
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._errors: set[int] = set()
        self.cache: Cache | None = None

    @property
    def agent(self) -> nixl_agent:
        """The NIXL agent of the worker.

        Raises:
            ValueError: the worker was closed.
        """
        if self._agent is None:
            raise ValueError("dlslime: the connector was shut down")
        return self._agent

    def register(self, caches: Mapping[str, torch.Tensor], config: Any) -> None:
        """Register the KV cache for other engines; raises ValueError as `layers_of` does."""
        if self._caches:
            raise ValueError("dlslime: the KV caches are registered already")
        layers, device = layers_of(caches, config), device_of(caches)
        self._caches = dict(caches)  # registered by address: keep alive
        for address, nbytes in storages(caches):
            self.agent.register_memory([(address, nbytes, max(device, 0), "")], _kind(device))
        expired = self._register(self._expired)
        metadata = self.agent.get_agent_metadata()
        blocks = config.num_blocks
        self.cache = Cache(metadata, blocks, self._block_size, layers, device, expired)

    def start(self, plan: Plan) -> None:
        """Begin the loads and leases of a plan."""
        now = time.monotonic()
        for request, seconds in plan.leases.items():
            if self._early.pop(_digest(request), None) is None:
                self._leases[request] = now + seconds
            else:
                self._sent.add(request)
        for request, load in plan.loads.items():
            self._begin(request, load)

    def finished(self) -> tuple[set[str], set[str]]:
        """Make progress; return requests whose blocks may be freed, and those with ended loads."""
        self._collect()
        now = time.monotonic()
        for peer in [*self._peers.values(), *self._leaving]:
            if peer.busy:
                peer.used = now
                self._advance(peer, now)
        self._part()
        sent, received = self._sent, self._received
        self._sent, self._received = set(), set()
        return sent, received

    def take_errors(self) -> set[int]:
        """Return the blocks of all loads that have failed since the last call."""
        errors, self._errors = self._errors, set()
        return errors

    def close(self) -> None:
        """Leave all peers; transfers in progress fail, here and at the peers."""
        agent, self._agent = self._agent, None
        for peer in [*self._peers.values(), *self._leaving]:
            if agent is not None:
                agent.remove_remote_agent(peer.agent)
        self._peers.clear()
        self._leaving.clear()

    # The lending side.

    def _collect(self) -> None:
        now = time.monotonic()
        for notes in self.agent.get_new_notifs().values():
            for note in notes:
                self._told(note, now)
        for request in [name for name, until in self._leases.items() if until <= now]:
            del self._leases[request]
            name = printable(request)
            _logger.warning(
                "no worker has fetched the blocks of request %s within %g s", name, self._lease
            )
            self._expired[self._expirations % _SLOTS] = _digest(request)
            self._expirations += 1
            self._sent.add(request)
        for early in [name for name, since in self._early.items() if since + self._lease < now]:
            del self._early[early]  # the lease has ended by now

    def _told(self, note: bytes, now: float) -> None:
        if len(note) > 4 * MOST_NAME:  # bytes of UTF-8: longer than any valid name
            return
        request = note.decode(errors="replace")
        if self._leases.pop(request, None) is not None:
            self._sent.add(request)
            return
        if len(self._early) >= _MOST_EARLY:
            del self._early[next(iter(self._early))]  # the oldest
        self._early[_digest(request)] = now  # the scheduler's lease may come later

    # The loading side.

    def _begin(self, request: str, load: Load) -> None:
        try:
            peer = self._peer(load.source.caches[self._rank])
            if load.here:
                peer.reading[request] = load, self._read(peer, load)
                # With an equal lease, the other worker gives up the blocks at about the same time.
                self._until[request] = time.monotonic() + self._lease
            else:
                self._release(peer, load)
        except _FAILED as error:
            self._fail(request, load, error, self._peers.get(load.source.caches[self._rank]))

    def _peer(self, encoded: str) -> _Peer:
        if encoded not in self._peers:
            cache = Cache.decode(encoded)
            if self.cache is None:
                raise ValueError("dlslime: no KV caches are registered here")
            self._part()
            self.cache.require_like(cache)
            self._require_new(Metadata.decode(cache.agent).name)
            self._make_room()
            name = self.agent.add_remote_agent(cache.agent).decode()
            if not self._spare:
                self._spare.append(np.zeros(_SLOTS, dtype=np.uint64))
                self._register(self._spare[-1])
            self._peers[encoded] = _Peer(cache, name, self._spare.pop())
        peer = self._peers[encoded]
        peer.used = time.monotonic()
        return peer

    def _make_room(self) -> None:
        if len(self._peers) + len(self._leaving) < _MOST_PEERS:
            return
        for encoded, peer in sorted(self._peers.items(), key=lambda entry: entry[1].used):
            # Leaving a peer with unsent notifications would block.
            if not peer.busy and self.agent.has_told(peer.agent):
                del self._peers[encoded]
                self.agent.remove_remote_agent(peer.agent)
                self._spare.append(peer.expired)
                return
        raise ValueError(
            f"dlslime: blocks are read from {_MOST_PEERS} workers already, the most at a time"
        )

    def _require_new(self, agent: str) -> None:
        # A worker keeps one description for life. A second description of an agent would replace
        # the regions used by loads of earlier requests.
        if any(peer.agent == agent for peer in self._peers.values()):
            raise ValueError(
                f"dlslime: the agent {shown(agent)} has described a different KV cache before"
            )
        if any(peer.agent == agent for peer in self._leaving):
            raise ValueError(
                f"dlslime: the connection to the agent {shown(agent)} was lost, and "
                "loads over the connection "
                "have not ended yet"
            )

    def _read(self, peer: _Peer, load: Load) -> nixl_xfer_handle:
        assert self.cache is not None
        count = peer.cache.num_blocks  # `there` came with the request: untrusted
        if max(load.there) >= count:
            raise ValueError(f"dlslime: block {max(load.there)} of a KV cache of {count} blocks")
        here = [(layer.addresses(load.here), layer.nbytes) for layer in self.cache.layers]
        there = [(layer.addresses(load.there), layer.nbytes) for layer in peer.cache.layers]
        return self._post(peer, (here, self.cache.device), (there, peer.cache.device))

    def _post(self, peer: _Peer, here: _Side, there: _Side) -> nixl_xfer_handle:
        ours, theirs = (
            self.agent.get_xfer_descs(_table(parts, device), _kind(device))
            for parts, device in (here, there)
        )
        assert ours is not None
        assert theirs is not None
        handle = self.agent.initialize_xfer("READ", ours, theirs, peer.agent)
        self.agent.transfer(handle)
        return handle

    def _advance(self, peer: _Peer, now: float) -> None:
        for request, (load, handle) in list(peer.reading.items()):
            try:
                if not handle.done():
                    if self._is_late(request, now):
                        handle.cancel()  # blocks stay in use until the end
                    continue
                peer.read[request] = load
            except nixl.nixlCancelledError:
                self._fail(request, load, self._late(), peer)
            except _FAILED as error:
                self._fail(request, load, error, peer)
            del peer.reading[request]
        self._advance_check(peer)
        for loads in (peer.read, peer.checking):
            for request in [name for name in loads if self._is_late(name, now)]:
                self._fail(request, loads.pop(request), self._late(), peer)
        if peer.check is not None and not peer.checking:
            peer.check.cancel()  # no load waits for the check

    def _is_late(self, request: str, now: float) -> bool:
        return self._until.get(request, now) <= now

    def _late(self) -> Exception:
        return ValueError(f"they have not come within {self._lease:g} seconds")

    def _advance_check(self, peer: _Peer) -> None:
        try:
            if peer.check is not None and peer.check.done():
                self._checked(peer)
            if peer.check is None and peer.read:
                peer.checking, peer.read = peer.read, {}
                mine = np.array([peer.expired.ctypes.data], dtype=np.uint64)
                theirs = np.array([peer.cache.expired], dtype=np.uint64)
                nbytes = peer.expired.nbytes
                peer.check = self._post(peer, ([(mine, nbytes)], -1), ([(theirs, nbytes)], -1))
        except _FAILED as error:
            for request, load in peer.checking.items():
                self._fail(request, load, error, peer)
            peer.checking, peer.check = {}, None

    def _checked(self, peer: _Peer) -> None:
        loads, peer.checking, peer.check = peer.checking, {}, None
        for request, load in loads.items():
            if _digest(load.source.request) in peer.expired:
                self._fail(request, load, ValueError("they were given up meanwhile"), peer)
                continue
            self._over(request)
            try:
                self._release(peer, load)
            except _FAILED as error:  # blocks are loaded; the lease frees the peer's
                name, text = printable(request), printable(str(error))
                _logger.warning(
                    "the blocks of request %s are read, but the prefill engine can't be told: %s",
                    name,
                    text,
                )

    def _release(self, peer: _Peer, load: Load) -> None:
        self.agent.send_notif(peer.agent, load.source.request)

    def _fail(self, request: str, load: Load, error: Exception, peer: _Peer | None) -> None:
        _logger.warning(
            "the blocks of request %s can't be read from engine %s: %s",
            printable(request),
            printable(load.source.engine),
            printable(str(error)),
        )
        if load.here:
            self._over(request)
            self._errors.update(load.here)
        if peer is not None and isinstance(error, _LOST):
            self._lose(peer)

    def _over(self, request: str) -> None:
        self._until.pop(request, None)
        self._received.add(request)

    def _lose(self, peer: _Peer) -> None:
        # A later request connects again: the engine may have been unreachable for a moment only.
        for encoded, known in list(self._peers.items()):
            if known is peer:
                del self._peers[encoded]
                self._leaving.append(peer)

    def _part(self) -> None:
        # Peers are removed once their loads have ended: removal would end a load early, while its
        # blocks may still be written.
        for peer in [peer for peer in self._leaving if not peer.busy]:
            self._leaving.remove(peer)
            self._spare.append(peer.expired)
            self.agent.remove_remote_agent(peer.agent)

    def _register(self, array: Addresses) -> int:
        address = int(array.ctypes.data)
        self.agent.register_memory([(address, array.nbytes, 0, "")], "DRAM")
        return address


def _kind(device: int) -> str:
    return "DRAM" if device < 0 else "VRAM"


def _table(parts: Sequence[tuple[Addresses, int]], device: int) -> Addresses:
    rows = []
    for addresses, nbytes in parts:
        table = np.zeros((len(addresses), 3), dtype=np.uint64)
        table[:, 0], table[:, 1], table[:, 2] = addresses, nbytes, max(device, 0)
        rows.append(table)
    return np.concatenate(rows)
