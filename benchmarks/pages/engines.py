"""An adapter for each transfer engine: prepares a batch of pieces, which is then started often.

Every constructor exchanges an object with the other end exactly once, so that the ends stay in step
if an engine could not be made (`load`). Pieces are at equal offsets at both ends. An engine that
`serves` needs the other end's help: both ends prepare and start a common batch. An engine with
writes that end before their bytes are at the other end has `deliver`, called before bytes are
checked and outside of the measured time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from measuring import transfer_libraries
from measuring.transfer_libraries import Exchange, Piece
from pages import rivals
from pages.base import MissingError, Settings, Start, Wait, all_of


class OtherEndError(MissingError):
    """The other end could not make its engine, and knows the reason."""


def _groups(pieces: list[Piece]) -> list[list[Piece]]:
    """Return the pieces in as few lists as possible, with no piece twice in a list."""
    groups: list[dict[Piece, None]] = []
    times: dict[Piece, int] = {}
    for piece in pieces:
        number = times[piece] = times.get(piece, -1) + 1
        if number == len(groups):
            groups.append({})
        groups[number][piece] = None
    return [list(group) for group in groups]


class Dlslime(transfer_libraries.Ours):
    """dlslime by its own API, with transfers prepared beforehand."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange, settings: Settings) -> None:
        if settings.qp_num > 1:  # read when the process's first endpoint is made
            os.environ["DLSLIME_QPS_PER_NIC"] = str(settings.qp_num)
        if settings.nic:
            os.environ["DLSLIME_NICS"] = f"={settings.nic}"
        super().__init__(memory, exchange)
        self._settings = settings
        self.serves = settings.immediate

    def prepare(self, pieces: list[Piece], write: bool) -> Start:  # type: ignore[override]
        """Return a function that starts the batch."""
        if self._settings.immediate:
            return self._immediate(pieces)
        make = self._endpoint.prepare_write if write else self._endpoint.prepare_read
        ready = [
            make(self._region, self._remote, [(at, at, size) for at, size in group])
            for group in _groups(pieces)
        ]
        if len(ready) == 1:
            return lambda: ready[0].start().wait
        return lambda: all_of([batch.start().wait for batch in ready])

    def _immediate(self, pieces: list[Piece]) -> Start:
        if not self._settings.initiates:
            return lambda: self._endpoint.expect_imm().wait
        *quiet, last = [[(at, at, size) for at, size in group] for group in _groups(pieces)]

        def start() -> Wait:
            write, told = self._endpoint.write, self._endpoint.write_with_imm
            waits = [write(self._region, self._remote, group).wait for group in quiet]
            return all_of([*waits, told(self._region, self._remote, last, imm=0).wait])

        return start

    def route(self) -> str:
        """Return the route of the bytes."""
        return self._endpoint.route()

    def close(self) -> None:
        """Leave the other end, and give the memory back."""
        self._endpoint.close()
        self._region.deregister()


ENGINES: dict[str, Callable[[torch.Tensor, Exchange, Settings], Any]] = {
    "dlslime": Dlslime,
    "upstream": rivals.Upstream,
    "upstream-tcp": rivals.UpstreamTcp,
    "nixl": rivals.Nixl,
    "mooncake": rivals.Mooncake,
    "nccl": rivals.Nccl,
    "gloo": rivals.Gloo,
}
ONE_SIDED = [name for name in ENGINES if name not in ("nccl", "gloo")]


def add_wheels(folder: str) -> None:
    """Let Python find the libraries of a folder after installed libraries."""
    if folder and folder not in sys.path:
        sys.path.append(folder)


def load(name: str, memory: torch.Tensor, settings: Settings) -> Any:
    """Return the engine, connected, at all ranks of the meeting alike.

    Raises:
        MissingError: the engine can't be used at one of the ends; all ends raise the error.
    """
    meeting, exchanged = settings.meeting, False

    def exchange(mine: Any) -> Any:
        nonlocal exchanged
        exchanged = True
        theirs = meeting.share(mine)[settings.peer]
        if theirs is None:
            raise OtherEndError
        return theirs

    engine, problem = None, None
    add_wheels(settings.wheels)
    try:
        engine = ENGINES[name](memory, exchange, settings)
    except Exception as error:  # noqa: BLE001 - of a library used only for comparison
        problem = text_of(error)
        if not exchanged:
            meeting.share(None)
    problems = [text for text in meeting.share(problem) if text is not None]
    if problems:
        if engine is not None:
            with suppress(Exception):
                engine.close()
        raise MissingError(next(filter(None, problems), "it failed without a reason"))
    return engine


def text_of(error: Exception) -> str:
    """Return the reason against using an engine, in one line."""
    text = next(iter(str(error).splitlines()), "")
    if isinstance(error, OtherEndError):
        return ""
    return text if isinstance(error, MissingError) else f"{type(error).__name__}: {text}"
