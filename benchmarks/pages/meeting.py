"""Meeting places of processes: torch's store, or, for two processes, a TCP socket."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from measuring.harness import JobError, Rank
from pages.options import UsageError

PATIENCE = timedelta(days=1)  # a large size may take hours, and torchrun ends a failed job
FRAME = 8  # bytes of the length before a message
LARGEST = 64 << 20  # bytes of a message


class Meeting(Protocol):
    """The services of other ranks that a program needs between its transfers."""

    rank: int
    world: int

    def share(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""

    def barrier(self) -> None:
        """Wait for all ranks."""


class StoreMeeting(Rank):
    """The ranks of torchrun at their store; no backend takes part."""

    def __init__(self, rank: int, world: int, store: Any, name: str) -> None:
        store.set_timeout(PATIENCE)
        super().__init__(rank, world, dist.PrefixStore(name, store), [])
        self._all = store

    def barrier(self) -> None:
        """Wait for all ranks, for any time."""
        self.share(None)

    def __enter__(self) -> StoreMeeting:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._leave()

    def _leave(self) -> None:
        """Let rank 0, whose process may have the store, go last."""
        if self.rank != 0:
            self.store.set(f"left/{self.rank}", "1")
            return
        self.store.wait([f"left/{rank}" for rank in range(1, self.world)], PATIENCE)

    def only(self, ranks: list[int], name: str) -> StoreMeeting:
        """Return a meeting of some of the ranks, numbered by their places in the list."""
        return StoreMeeting(ranks.index(self.rank), len(ranks), self._all, name)


def of_torchrun(name: str, even: bool = True) -> StoreMeeting:
    """Return the meeting of the ranks started by torchrun.

    Raises:
        UsageError: torchrun has started no ranks, or an odd number although pairs are needed.
    """
    missing = [key for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if key not in os.environ]
    if missing:
        raise UsageError(f"{missing[0]} is not set: start this by torchrun, with two ranks or more")
    world = int(os.environ["WORLD_SIZE"])
    if world < 2 or (even and world % 2):
        raise UsageError(f"{world} ranks: this needs {'an even number' if even else 'two or more'}")
    store, rank, world = next(iter(rendezvous("env://", timeout=timedelta(minutes=5))))
    return StoreMeeting(rank, world, store, f"pages/{name}")


def own_address() -> str:
    """Return the address by which other hosts of the job reach the host, judging by routes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        found: str = probe.getsockname()[0]
        return found


class SocketMeeting:
    """Two processes at a socket; messages are JSON, with bytes in hexadecimal."""

    world = 2

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def share(self, value: Any) -> list[Any]:
        """Return both values, by rank.

        Raises:
            JobError: the other process has ended.
        """
        try:
            if self.rank == 0:  # not both at once, which might fill both sockets
                self._send(value)
                return [value, self._receive()]
            theirs = self._receive()
            self._send(value)
        except OSError as error:
            raise JobError(f"the other process has ended: {error.strerror}") from None
        return [theirs, value]

    def barrier(self) -> None:
        """Wait for the other process."""
        self.share(None)

    def _send(self, value: Any) -> None:
        text = json.dumps(value, default=_encoded).encode()
        self._connection.sendall(len(text).to_bytes(FRAME, "big") + text)

    def _receive(self) -> Any:
        size = int.from_bytes(self._bytes(FRAME), "big")
        if size > LARGEST:
            raise JobError(f"the other process announces {size} bytes: it is none of ours")
        return json.loads(self._bytes(size), object_hook=_decoded)

    def _bytes(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._connection.recv(size - len(received))
            if not part:
                raise JobError("the other process has ended")
            received += part
        return bytes(received)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    raise TypeError(f"{type(value).__name__} is not said at a meeting")


def _decoded(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["bytes"]) if set(value) == {"bytes"} else value


def _resolved(place: tuple[str, int]) -> tuple[int, Any]:
    """Return the family and the address of a host and a port.

    Raises:
        UsageError: the host does not exist.
    """
    try:
        family, _, _, _, found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"there is no host {place[0]}: {error.strerror}") from None
    return family, found


def listen(place: tuple[str, int], patience: float) -> SocketMeeting:
    """Wait at an address of this host for the other process, and be rank 0.

    Raises:
        UsageError: the address is not of this host, its port is taken, or no process has come.
    """
    family, where = _resolved(place)
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.settimeout(patience)
        try:
            listener.bind(where)
            listener.listen(1)
            connection, _ = listener.accept()
        except TimeoutError:
            raise UsageError(f"no process has come to {_text(place)} in {patience:g} s") from None
        except OSError as error:
            raise UsageError(f"can't listen at {_text(place)}: {error.strerror}") from None
    connection.settimeout(None)
    return SocketMeeting(0, connection)


def connect(place: tuple[str, int], patience: float) -> SocketMeeting:
    """Connect to the address where the other process waits, or will wait soon, and be rank 1.

    Raises:
        UsageError: no process waits at the address.
    """
    family, where = _resolved(place)
    end = time.monotonic() + patience
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(max(0.1, end - time.monotonic()))
        try:
            connection.connect(where)
        except OSError as error:
            connection.close()
            if time.monotonic() >= end:
                reason = error.strerror or "no answer"
                raise UsageError(
                    f"no process listens at {_text(place)}: {reason}, for {patience:g} s"
                ) from None
            time.sleep(0.1)
        else:
            connection.settimeout(None)
            return SocketMeeting(1, connection)


def _text(place: tuple[str, int]) -> str:
    return f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"
