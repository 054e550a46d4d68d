"""Other agents: their metadata, their memory, and what they are told and tell."""

from __future__ import annotations

import base64
import json
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from dlslime_backend import memory, one_sided
from dlslime_backend._untrusted import choice, decode_base64, flag, items, parse_json, text
from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl._regions import Index, Regions, of_exported

NOTE_TAG = 2  # beside immediates
NOTE_BYTES = 64 << 10  # at most, of one notification
_FORMAT = "dlslime nixl 1"
# What metadata may have; a region takes some 200 bytes.
_MOST_BYTES = 64 << 20
_MOST_FIELDS = 1 << 18
_MOST_NAME = 4096  # characters
_MOST_EXPORTED = 64 << 10  # bytes of an address, or of a region
# What is taken of one sender in one call: one that stays ahead of the reader must not hold it up.
_MOST_NOTES = 1024
_MOST_TAKEN = 4 << 20  # bytes, and what the last note has beyond them
_GONE = (ValueError, TimeoutError, dist.DistBackendError)  # or it breaks the rules


@dataclass
class Metadata:
    """What one agent tells the others of itself."""

    name: str
    address: bytes  # of its hub; empty where only memory is told of
    regions: list[bytes]  # exported
    whole: bool  # the agent has no other memory

    def encode(self) -> bytes:
        """Return it as bytes."""
        fields = [self.address, *self.regions]
        texts = [base64.b64encode(entry).decode() for entry in fields]
        return json.dumps([_FORMAT, self.name, self.whole, *texts]).encode()

    @classmethod
    def decode(cls, content: bytes) -> Metadata:
        """Return what `encode` was given; from another process, so nothing is trusted.

        Raises:
            nixlMismatchError: these bytes are something else.
        """
        try:
            found = parse_json(content, most_bytes=_MOST_BYTES, most_values=_MOST_FIELDS)
            form, name, whole, address, *regions = items(found, "it", _MOST_FIELDS, 4)
            choice(form, "the format", [_FORMAT])
            return cls(
                text(name, "the agent's name", _MOST_NAME),
                decode_base64(address, "the agent's address", _MOST_EXPORTED),
                [decode_base64(entry, "a region", _MOST_EXPORTED) for entry in regions],
                flag(whole, "whether that is all memory"),
            )
        except ValueError as error:
            raise b.nixlMismatchError(f"no metadata of dlslime's NIXL module: {error}") from error


class Remote:
    """An agent that this one can reach."""

    def __init__(self, own_name: str, name: str, address: bytes) -> None:
        self.name = name
        self.address = address
        self._known: Regions[memory.RemoteRegion] = Regions()
        self._own_name = own_name
        self._endpoint = one_sided.Endpoint(f"agent {own_name} to agent {name}")
        self._endpoint.connect(address)
        self._greeted = False
        self._telling: deque[Any] = deque()  # notes that may not have left
        self._lock = threading.Lock()

    @property
    def index(self) -> Index:
        """Its memory, as far as it is known."""
        return self._known.index()

    def add(self, exported: list[bytes], whole: bool = False) -> None:
        """Get to know memory of this agent, beside what is known, or in its place: `whole`."""
        if not whole:
            self._known.add(of_exported(self._known, exported))
            return
        kept = [(entry, self._known.get(entry)) for entry in dict.fromkeys(exported)]
        known: Regions[memory.RemoteRegion] = Regions()
        known.add((entry, region or memory.import_region(entry)) for entry, region in kept)
        self._known = known

    def transfer(self, write: bool, parts: list[Any], note: bytes) -> Any:
        """Begin to move bytes, and to tell the agent `note` when they are there."""
        if not note:
            return self._endpoint._link.transfer(write, parts)
        self._greet()
        return self._endpoint._link.transfer(write, parts, NOTE_TAG, note)

    def tell(self, note: bytes) -> Any:
        """Send a notification."""
        self._greet()
        told = self._endpoint._link.send_note(NOTE_TAG, note)
        with self._lock:
            self._forget_told()
            self._telling.append(told)
        return told

    def has_told(self) -> bool:
        """Tell whether every notification has left."""
        with self._lock:
            self._forget_told()
            return not self._telling

    def connect(self) -> None:
        """Reach the agent now."""
        self._endpoint.route()

    def close(self) -> None:
        """Let go of it; what is under way fails."""
        self._endpoint.close()

    def _forget_told(self) -> None:
        while self._telling and self._telling[0].ended:
            self._telling.popleft()

    def _greet(self) -> None:
        # It knows nothing of us: the first note is our name.
        with self._lock:
            if not self._greeted:
                self._endpoint._link.send_note(NOTE_TAG, self._own_name.encode())
                self._greeted = True


@dataclass
class _Sender:
    guest: one_sided.Guest
    pending: Any
    name: str | None = None  # its first note


class Mailbox:
    """What others tell this agent. Any thread may look."""

    def __init__(self, name: str) -> None:
        self._hub = one_sided.Hub(f"agent {name}")
        self._senders: list[_Sender] = []
        self._lock = threading.Lock()

    @property
    def address(self) -> bytes:
        """Where others connect."""
        return self._hub.address

    def collect(self, notes: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Add what has come to `notes`, by the names of agents, and return it.

        Of one agent at most `_MOST_NOTES` in a call; what is left comes with the next.
        """
        with self._lock:
            for guest in self._hub.accept():  # which looks for news, too
                try:
                    # Until it has told its name, less memory is kept for it.
                    pending = _receive(guest, 4 * _MOST_NAME)  # bytes of UTF-8
                except _GONE:
                    guest.close()
                    continue
                self._senders.append(_Sender(guest, pending))
            self._senders = [sender for sender in self._senders if _drain(sender, notes)]
        return notes

    def close(self) -> None:
        """Take nothing any more."""
        self._hub.close()
        for sender in self._senders:
            sender.guest.close()


def _receive(guest: one_sided.Guest, most: int = NOTE_BYTES) -> Any:
    return guest._link.receive_note(NOTE_TAG, most)


def _drain(sender: _Sender, notes: dict[str, list[bytes]]) -> bool:
    """Take some of what has come of one sender; False when it has gone."""
    count = taken = 0
    while count < _MOST_NOTES and taken < _MOST_TAKEN and sender.pending.ended:
        try:
            sender.pending.wait(0)
            content = bytes(sender.pending.content)
            if sender.name is None:
                sender.name = text(content.decode(), "the agent's name", _MOST_NAME)
            else:
                notes.setdefault(sender.name, []).append(content)
            count, taken = count + 1, taken + len(content)
            sender.pending = _receive(sender.guest)
        except _GONE:
            sender.guest.close()
            return False
    return True
