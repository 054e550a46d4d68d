"""Common settings and functions of every adapter of a transfer engine."""

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
    """Settings of an engine beside its memory.

    Attributes:
        rank: of the calling end in `meeting`; `peer` is the other end's.
        initiates: whether the calling end reads and writes.
        nic: an RDMA device by name; empty leaves the choice to the engine, or takes the device of
            number `local_rank` for an engine that makes no choice.
        immediate: writes notify the other end with a number once over.
        host: the address by which others know the host.
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
    """An engine can't be used here; the text gives the reason."""


def nics() -> list[str]:
    """Return the RDMA devices of the host."""
    return sorted(entry.name for entry in NICS.iterdir()) if NICS.is_dir() else []


def nic_of(settings: Settings) -> str:
    """Return the RDMA device of an engine that makes no choice of its own.

    Raises:
        MissingError: the host has no RDMA device.
    """
    found = nics()
    if not found:
        raise MissingError("this host has no RDMA NIC")
    return settings.nic or found[settings.local_rank % len(found)]


def all_of(waits: list[Wait]) -> Wait:
    """Return a function that calls all waits."""

    def wait() -> None:
        for one in waits:
            one()

    return wait
