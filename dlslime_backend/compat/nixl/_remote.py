"""Remote agents: metadata, memory, and notifications in both directions."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from dlslime_backend import memory, one_sided
from dlslime_backend._untrusted import choice, decode_base64, flag, items, parse_json, text
from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl._regions import Index, Regions, of_exported

NOTE_TAG = 2  # one_sided uses tag 1, for immediates
NOTE_BYTES = 64 << 10  # limit of one notification
_FORMAT = "dlslime nixl 1"
# Limits of metadata; a region takes about 200 bytes.
_MOST_BYTES = 64 << 20
_MOST_FIELDS = 1 << 18
_MOST_NAME = 4096  # characters
_MOST_EXPORTED = 64 << 10  # bytes of an address or a region
# Limits for one sender in one call: a sender faster than the reader must not block the reader.
_MOST_NOTES = 1024
_MOST_TAKEN = 4 << 20  # bytes; the last note may exceed the limit
_GONE = (ValueError, TimeoutError, dist.DistBackendError)  # ValueError: the peer breaks the rules


@dataclass
class Metadata:
    """Information that an agent gives to other agents."""

    name: str
    address: bytes  # of the agent's hub; empty in metadata of memory only
    regions: list[bytes]  # exported
    whole: bool  # the agent has no further memory

    def encode(self) -> bytes:
        """Return the metadata as bytes."""
        fields = [self.address, *self.regions]
        texts = [base64.b64encode(entry).decode() for entry in fields]
        return json.dumps([_FORMAT, self.name, self.whole, *texts]).encode()

    @classmethod
    def decode(cls, content: bytes) -> Metadata:
        """Return the metadata from the bytes of `encode`; the bytes are not trusted.

        Raises:
            nixlMismatchError: the bytes are no metadata.
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


def agent_name_of(metadata: bytes) -> str:
    """Return the name of the agent that metadata describe; the metadata are not trusted.

    Not part of NIXL's API: tells which agent `add_remote_agent` would add or replace.

    Args:
        metadata: the bytes of `get_agent_metadata` or `get_partial_agent_metadata`.

    Raises:
        nixlMismatchError: the bytes are no metadata.
    """
    return Metadata.decode(metadata).name


class Remote:
    """A remote agent, reached through an endpoint."""

    def __init__(self, own_name: str, name: str, address: bytes) -> None:
        self.name = name
        self.address = address
        self._known: Regions[memory.RemoteRegion] = Regions()
        self._own_name = own_name
        self._endpoint = one_sided.Endpoint(f"agent {own_name} to agent {name}")
        self._endpoint.connect(address)
        self._greeted = False
        self._lock = threading.Lock()

    @property
    def index(self) -> Index:
        """The known memory of the agent."""
        return self._known.index()

    def add(self, exported: list[bytes], whole: bool = False) -> None:
        """Add memory of the agent; `whole` means that all other memory is gone.

        Raises:
            ValueError: a region is malformed.
        """
        if not whole:
            self._known.add(of_exported(self._known, exported))
            return
        kept = [(entry, self._known.get(entry)) for entry in dict.fromkeys(exported)]
        known: Regions[memory.RemoteRegion] = Regions()
        known.add((entry, region or memory.import_region(entry)) for entry, region in kept)
        self._known = known

    def transfer(self, write: bool, parts: list[Any], note: bytes) -> Any:
        """Begin a transfer; the agent gets `note`, unless empty, once the bytes are in place."""
        if not note:
            return self._endpoint._link.transfer(write, parts)
        self._greet()
        return self._endpoint._link.transfer(write, parts, NOTE_TAG, note)

    def tell(self, note: bytes) -> Any:
        """Send a notification; return the operation."""
        self._greet()
        return self._endpoint._link.send_note(NOTE_TAG, note)

    def connect(self) -> None:
        """Connect now."""
        self._endpoint.route()

    def close(self) -> None:
        """Leave the agent; operations in progress fail."""
        self._endpoint.close()

    def _greet(self) -> None:
        # The agent does not know the sender of notes: the first note is the sender's name.
        with self._lock:
            if not self._greeted:
                self._endpoint._link.send_note(NOTE_TAG, self._own_name.encode())
                self._greeted = True


@dataclass
class _Sender:
    guest: one_sided.Guest
    pending: Any
    name: str | None = None  # content of the first note


class Mailbox:
    """Receives the notifications for an agent. Any thread may use the mailbox."""

    def __init__(self, name: str) -> None:
        self._hub = one_sided.Hub(f"agent {name}")
        self._senders: list[_Sender] = []
        self._lock = threading.Lock()

    @property
    def address(self) -> bytes:
        """The address for other agents' endpoints."""
        return self._hub.address

    def collect(self, notes: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Add received notifications to `notes`, by the senders' names; return `notes`.

        Takes at most `_MOST_NOTES` of each sender; the rest comes with the next call.
        """
        with self._lock:
            for guest in self._hub.accept():  # also makes progress
                try:
                    # Before a sender has told its name, less memory is reserved.
                    pending = _receive(guest, 4 * _MOST_NAME)  # bytes of UTF-8
                except _GONE:
                    guest.close()
                    continue
                self._senders.append(_Sender(guest, pending))
            self._senders = [sender for sender in self._senders if _drain(sender, notes)]
        return notes

    def close(self) -> None:
        """Receive no more notifications."""
        self._hub.close()
        for sender in self._senders:
            sender.guest.close()


def _receive(guest: one_sided.Guest, most: int = NOTE_BYTES) -> Any:
    return guest._link.receive_note(NOTE_TAG, most)


def _drain(sender: _Sender, notes: dict[str, list[bytes]]) -> bool:
    """Take notifications of one sender up to the limits; return False if the sender has left."""
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
