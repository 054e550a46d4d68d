"""The prefill side of a worker of the vLLM connector: blocks leased to the workers of decode.

A worker that has read the blocks of a request sends the digest of the request's name, and the lease
ends. A lease that is not ended in time expires: its digest is written into a list before the blocks
are freed. Workers read the list after the blocks, so a load from blocks in new use is detected.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from dlslime_backend import memory, one_sided
from dlslime_backend._untrusted import printable
from dlslime_backend.integrations._vllm_layout import deregister

DIGEST_BYTES = 16
# Length of the list of expired leases. A load misses its entry if 4,096 further leases expire while
# the blocks are read.
_SLOTS = 4096
# Limit of digests received without a lease: a peer may send digests of requests that never existed.
_MOST_EARLY = 1 << 16
# Limit for one reader in one call: a reader that sends faster than a step must not block the step.
_MOST_MESSAGES = 1024
_GONE = (ValueError, TimeoutError, dist.DistBackendError)  # ValueError: the reader breaks the rules
Digests = npt.NDArray[np.uint8]  # [_SLOTS, DIGEST_BYTES]; unused entries are 0
_logger = logging.getLogger("dlslime.vllm")


def digest_of(request: str) -> bytes:
    """Return the digest of a request's name, DIGEST_BYTES bytes."""
    return hashlib.blake2b(request.encode(), digest_size=DIGEST_BYTES).digest()


def no_digests() -> Digests:
    """Return an empty list of expired leases."""
    return np.zeros((_SLOTS, DIGEST_BYTES), dtype=np.uint8)


def contains(expired: Digests, request: str) -> bool:
    """Return whether the lease of a request is in a list of expired leases."""
    digest = np.frombuffer(digest_of(request), dtype=np.uint8)
    return bool((expired == digest).all(axis=1).any())


class _Reader:
    """A worker that reads blocks; receives its messages, of one digest each."""

    def __init__(self, guest: one_sided.Guest) -> None:
        self.close = guest.close
        self._guest = guest
        self._digest = torch.empty(DIGEST_BYTES, dtype=torch.uint8)
        self._message = guest.recv(self._digest)

    def take(self) -> bytes | None:
        """Return the next digest, or None if no message has come.

        Raises:
            ValueError: the message is too short.
            DistBackendError: the message is too long, or the reader has gone.
        """
        if not self._message.ended:
            return None
        self._message.wait(0)
        if self._message.nbytes != DIGEST_BYTES:
            raise ValueError(f"dlslime: a message of {self._message.nbytes} bytes")
        digest = self._digest.numpy().tobytes()
        self._message = self._guest.recv(self._digest)
        return digest


class Leases:
    """The leases of one worker.

    Args:
        name: of the worker, for error messages.
        seconds: length of a lease, for the log.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._seconds = seconds
        self._hub = one_sided.Hub(name)
        self._readers: list[_Reader] = []
        self._leases: dict[bytes, tuple[str, float]] = {}  # digest -> request, end
        # Digests received before the scheduler's lease came -> time.
        self._early: dict[bytes, float] = {}
        self._ended: set[str] = set()
        self._expired = no_digests()
        self._expirations = 0
        self._region = memory.register(self._expired, "expired leases", access="read")

    @property
    def address(self) -> bytes:
        """Address for the endpoints of readers."""
        return self._hub.address

    def export_expired(self) -> bytes:
        """Return the handle of the list of expired leases, to be read only."""
        return self._region.export()

    def begin(self, leases: Mapping[str, float], now: float) -> None:
        """Begin leases: request -> seconds."""
        for request, seconds in leases.items():
            if self._early.pop(digest_of(request), None) is None:
                self._leases[digest_of(request)] = request, now + seconds
            else:
                self._ended.add(request)

    def take_ended(self, now: float) -> set[str]:
        """Make progress; return the requests whose leases have ended since the last call."""
        self._readers += self._accepted()
        self._readers = [reader for reader in self._readers if self._listen(reader, now)]
        self._expire(now)
        ended, self._ended = self._ended, set()
        return ended

    def close(self) -> None:
        """Leave all readers; their transfers fail."""
        for reader in self._readers:
            reader.close()
        self._hub.close()
        deregister([self._region])

    def _accepted(self) -> list[_Reader]:
        readers = []
        for guest in self._hub.accept():  # also makes progress
            try:
                readers.append(_Reader(guest))
            except _GONE:
                guest.close()
        return readers

    def _listen(self, reader: _Reader, now: float) -> bool:
        """Take the messages of a reader; return False if the reader has gone."""
        try:
            for _ in range(_MOST_MESSAGES):
                digest = reader.take()
                if digest is None:
                    break
                self._on_read(digest, now)
        except _GONE:
            reader.close()
            return False
        return True

    def _on_read(self, digest: bytes, now: float) -> None:
        request, _ = self._leases.pop(digest, (None, 0.0))
        if request is not None:
            self._ended.add(request)
            return
        if len(self._early) >= _MOST_EARLY:
            del self._early[next(iter(self._early))]  # the oldest
        self._early[digest] = now

    def _expire(self, now: float) -> None:
        for digest in [digest for digest, (_, end) in self._leases.items() if end <= now]:
            request, _ = self._leases.pop(digest)
            name = printable(request)
            _logger.warning(
                "no worker has fetched the blocks of request %s within %g s", name, self._seconds
            )
            self._expired[self._expirations % _SLOTS] = np.frombuffer(digest, dtype=np.uint8)
            self._expirations += 1
            self._ended.add(request)
        for early in [key for key, since in self._early.items() if since + self._seconds < now]:
            del self._early[early]  # the lease has ended by now
