"""The handshake of docs/protocol.md in plain Python, for tests with a dishonest peer."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import dataclass, field

VERSION = 16
MAGIC = b"DLSLIME1"
TOKEN, PAIR = 1, 2  # kinds of secrets
ACCEPTED, REFUSED, CROSSED, STRANGER, LATER, NOT_JOINED = range(1, 7)  # verdicts
_ACCEPTOR_PROOF, _OF_INITIATOR, _OF_ACCEPTOR = 1, 3, 4  # uses of a key


def blob(data: bytes) -> bytes:
    """Return bytes with their length in front."""
    return struct.pack("<I", len(data)) + data


def preamble(version: int = VERSION) -> bytes:
    """Return the first bytes of every record."""
    return MAGIC + struct.pack("<H", version)


class Reader:
    """Takes a record apart."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        assert self.take(8) == MAGIC
        assert self.number("H") == VERSION

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        assert size <= len(self._data)
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def number(self, code: str) -> int:
        """Return the next number, of a format `code` of `struct`."""
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return int(value)

    def blob(self) -> bytes:
        """Return the next bytes, whose length stands in front."""
        return self.take(self.number("I"))


@dataclass
class Address:
    """An address record."""

    instance: bytes
    contact: bytes  # encoded: all fields except the token and the group
    socket_name: bytes
    token: bytes
    group: int

    @classmethod
    def of_endpoint(cls, address: bytes) -> Address:
        """Decode Endpoint.address, which holds two records that lead to the same process."""
        reader = Reader(address)
        reader.blob()  # the endpoint's number
        return cls.decode(reader.blob())

    @classmethod
    def decode(cls, record: bytes) -> Address:
        """Decode an address record."""
        reader = Reader(record)
        instance, boot, host = reader.blob(), reader.blob(), reader.blob()
        numbers = reader.take(20)  # network namespace, pid, uid, the host's uid
        directory = reader.blob()
        name = reader.blob()
        addresses = [reader.blob() for _ in range(reader.number("I"))]
        contact = blob(instance) + blob(boot) + blob(host) + numbers + blob(directory) + blob(name)
        contact += struct.pack("<I", len(addresses)) + b"".join(map(blob, addresses))
        return cls(instance, contact, name, reader.blob(), reader.number("I"))


@dataclass
class Initiator:
    """The end that connects."""

    address: Address
    instance: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    secret: bytes = b""  # empty: the token of the address
    key: bytes = b""

    def greeting(self, version: int = VERSION) -> bytes:
        """Return the first record."""
        fields = [preamble(version), blob(self.address.instance), blob(self.instance)]
        return b"".join([*fields, struct.pack("<BB", 0, TOKEN), blob(self.nonce)])

    def take_challenge(self, record: bytes) -> tuple[int, bytes]:
        """Derive the key, and return the verdict and the text."""
        reader = Reader(record)
        verdict, text, nonce = reader.number("B"), reader.blob(), reader.blob()
        proof = reader.blob()
        if verdict == ACCEPTED:
            secret = self.secret or self.address.token
            self.key = _code(secret, b"dlslime handshake", self.greeting(), nonce)
            if not self.secret:
                assert proof == _code(self.key, bytes([_ACCEPTOR_PROOF, 0])), "no proof"
        return verdict, text

    def seal(self, number: int, record: bytes) -> bytes:
        """Return the record with its seal."""
        return record + _code(self.key, bytes([_OF_INITIATOR, number]), record)

    def open(self, sealed: bytes) -> bytes:
        """Return the acceptor's record without its seal, after checking the seal."""
        record, seal = sealed[:-32], sealed[-32:]
        assert seal == _code(self.key, bytes([_OF_ACCEPTOR, 0]), record)
        return record

    def hello(
        self, contact: bytes, route: bytes = b"pigeon", offer: bytes = b"", descriptors: int = 0
    ) -> bytes:
        """Ask for a connection over a route, with the route's offer."""
        fields = [preamble(), blob(self.instance), contact[20:], blob(secrets.token_bytes(8))]
        fields += [struct.pack("<IQ", self.address.group, 1 << 20), blob(route), blob(offer)]
        return b"".join([*fields, struct.pack("<BIBIQ", descriptors, 0, 0, 0, 0)])


def _code(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def receive_frame(client: socket.socket) -> bytes | None:
    """Receive a whole frame; None if the peer hangs up before the end of the frame."""
    data = b""
    size = 4
    while len(data) < size:
        try:
            more = client.recv(size - len(data))
        except ConnectionError:
            return None
        if not more:
            return None
        data += more
        if len(data) == 4:
            size += struct.unpack("<I", data)[0]
    return data[4:]


def connect_to(name: bytes, timeout: float = 10) -> socket.socket:
    """Connect a socket to a listener of the host."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout)
    client.connect(b"\0" + name)
    return client
