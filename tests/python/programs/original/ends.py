"""Both ends of a program: in one process, or each in a process of its own.

    python PROGRAM                                                  both, by one thread
    python PROGRAM --role target --address HOST:PORT                the target listens there,
    python PROGRAM --role initiator --address HOST:PORT             and the initiator connects

Programs import the library first, and then this module, which imports torch.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

assert sys.modules.keys() & {"dlslime", "slime"}, "the library is to be imported first"

ROLES = ("initiator", "target")
CONNECT_SECONDS = 60
# A hanging program writes its stacks and ends.
STACKS_SECONDS = 90


def other(role: str) -> str:
    """Return the role of the peer."""
    return ROLES[1 - ROLES.index(role)]


class Line:
    """A connection to the other process, for objects of JSON."""

    def __init__(self, from_peer: socket.socket, to_peer: socket.socket) -> None:
        self._reader, self._writer = from_peer.makefile("r"), to_peer.makefile("w")

    def exchange(self, mine: Any) -> Any:
        """Send an object, and return the object sent by the other process."""
        self._writer.write(json.dumps(mine) + "\n")
        self._writer.flush()
        line = self._reader.readline()
        assert line, "the other process has ended"
        return json.loads(line)


def listen(address: str) -> socket.socket:
    """Listen at HOST:PORT; HOST is the initiator's name for the target."""
    return socket.create_server(("", int(address.rpartition(":")[2])))


def dial(address: str) -> socket.socket:
    """Connect to HOST:PORT once a process listens there."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def meet_by_one(role: str, address: str) -> Line:
    """Join two processes at the address where the target listens."""
    if role == "target":
        with listen(address) as listener:
            connection = listener.accept()[0]
    else:
        connection = dial(address)
    return Line(connection, connection)


def meet_by_two(mine: str, theirs: str) -> Line:
    """Join two processes that each listen at an address of its own."""
    with listen(mine) as listener:
        to_peer = dial(theirs)
        return Line(listener.accept()[0], to_peer)


class Ends:
    """The ends in this process, and the line to an end in another process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device: str = arguments.device
        self.roles = ROLES if arguments.role == "both" else (arguments.role,)
        self.initiator = "initiator" in self.roles
        self.target = "target" in self.roles
        alone = len(self.roles) == 2
        self._line = None if alone else meet_by_one(arguments.role, arguments.address)

    def exchange(self, mine: Mapping[str, Any]) -> dict[str, Any]:
        """Exchange the local ends' objects with the other process; return objects of both ends."""
        return dict(mine) if self._line is None else {**mine, **self._line.exchange(mine)}

    def meet(self) -> None:
        """Wait until the other process has come, too."""
        self.exchange({})

    def bytes(self, count: int, value: int) -> torch.Tensor:
        """Make memory: uint8 [count], filled with a value."""
        return filled(count, value, self.device)


def filled(count: int, value: int, device: str) -> torch.Tensor:
    """Make memory: uint8 [count], filled with a value."""
    return torch.full((count,), value, dtype=torch.uint8, device=device)


def settle(device: str) -> None:
    """Wait for all work of the GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def expect(found: torch.Tensor | None, expected: Any, what: str) -> None:
    """Compare every byte with the expected value, if the memory is in this process."""
    if found is None:
        return
    wanted = torch.as_tensor(expected, dtype=found.dtype)
    seen = found.cpu()
    assert seen.shape == wanted.shape, f"{what}: shape {seen.shape}, not {wanted.shape}"
    wrong = (seen != wanted).nonzero().flatten().tolist()
    assert not wrong, f"{what}: {len(wrong)} differ, first at {wrong[0]}: {seen[wrong[0]]}"


class Memory(dict[str, torch.Tensor]):
    """16 bytes of each end in this process: zeros of the initiator's, ones of the target's."""

    def __init__(self, ends: Ends) -> None:
        super().__init__({role: ends.bytes(16, ROLES.index(role)) for role in ends.roles})
        self._ends = ends

    def expect(self, initiator: list[int], target: list[int]) -> None:
        """Wait for both ends, and compare every byte."""
        self._ends.meet()
        for role, wanted in zip(ROLES, (initiator, target)):
            expect(self.get(role), wanted, f"the {role}'s memory")
        self._ends.meet()


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    """Make contents that show missing, moved or stale bytes: uint8 [count]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


def parser_of(description: str | None, *, roles: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """Return a parser of the common options; with `roles`, also of the ends' processes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    if roles:
        parser.add_argument("--role", choices=roles, default=roles[0])
        parser.add_argument("--address", help="HOST:PORT of the target", default="127.0.0.1:29600")
    return parser


def run(main: Callable[[Ends], None], description: str | None = None) -> None:
    """Run a program with one or both ends in this process, as the command line says."""
    arguments = parser_of(description, roles=("both", *ROLES)).parse_args()
    finish(lambda: main(Ends(arguments)))


def finish(main: Callable[[], None]) -> None:
    """Run a program to its end, and print that the end was reached."""
    faulthandler.dump_traceback_later(STACKS_SECONDS, exit=True)
    main()
    print("all right", flush=True)
