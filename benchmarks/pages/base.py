"""What every adapter of a transfer engine is told, and has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pages.meeting import Meeting

NICS = Path("/sys/class/infiniband")

Wait = Callable[[], object]
Start = Callable[[], Wait]


@dataclass
class Settings:
    """What an engine is told beside its memory.

    Attributes:
        rank: of this end in `meeting`; `peer` is the other end's.
        initiates: whether this end reads and writes.
        nic: an RDMA device by name; empty leaves the choice to the engine, or takes the one of
            this number, `local_rank`, where the engine makes no choice.
        immediate: writes tell the other end with a number that they are over.
        host: the address that others know this host by.
    """

    meeting: Meeting
    rank: int
    peer: int
    initiates: bool
    local_rank: int = 0
    qp_num: int = 1
    nic: str = ""
    ib_port: int = 1
    link_type: str = "auto"
    immediate: bool = False
    wheels: str = ""
    protocol: str = "auto"
    host: str = ""


class MissingError(Exception):
    """An engine can't be used here; the text says why."""


def nics() -> list[str]:
    """The RDMA devices of this host."""
    return sorted(entry.name for entry in NICS.iterdir()) if NICS.is_dir() else []


def nic_of(settings: Settings) -> str:
    """The RDMA device of an engine that makes no choice of its own.

    Raises:
        MissingError: there is none.
    """
    found = nics()
    if not found:
        raise MissingError("this host has no RDMA NIC")
    return settings.nic or found[settings.local_rank % len(found)]


def all_of(waits: list[Wait]) -> Wait:
    """Waits for each."""

    def wait() -> None:
        for one in waits:
            one()

    return wait
