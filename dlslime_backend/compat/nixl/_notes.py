"""The part of an agent that is told, and tells, of transfers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl._backends import Backends
from dlslime_backend.compat.nixl._remote import NOTE_BYTES, Mailbox, Remote

NO_EXCHANGE = (
    "dlslime's NIXL module has no metadata server and no listener: exchange get_agent_metadata() "
    "and add_remote_agent() by the program's own means"
)


class Notes(Backends, ABC):
    """Notifications: each arrives after the bytes it is about, in the order of one sender."""

    _mailbox: Mailbox

    def __init__(self, wanted: Sequence[str]) -> None:
        super().__init__(wanted)
        self.notifs: dict[str, list[bytes]] = {}

    @abstractmethod
    def _remote(self, agent: str | bytes) -> Remote:
        """Find the agent that was added under this name."""

    def get_new_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Return what other agents have told since the last call, by their names.

        At most 1,024 of one agent, and some 4 MiB: what is left comes with the next call.
        """
        self._check(backends)
        return self._mailbox.collect({})

    def update_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Add what has come to `notifs`, and return all of it."""
        self._check(backends)
        return self._mailbox.collect(self.notifs)

    def check_remote_xfer_done(
        self,
        remote_agent_name: str | bytes,
        lookup_tag: bytes,
        backends: Sequence[str] = (),
        tag_is_prefix: bool = True,
    ) -> bool:
        """Tell whether an agent has told something that begins with, or else contains, a tag.

        The first one that does is removed from `notifs`.
        """
        mine = self.update_notifs(backends).get(text(remote_agent_name), [])
        for message in mine:
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                mine.remove(message)
                return True
        return False

    def send_notif(
        self, remote_agent_name: str | bytes, notif_msg: bytes | str, backend: str | None = None
    ) -> None:
        """Tell an agent something that is about no transfer.

        Raises:
            nixlNotFoundError: it is not known.
        """
        self._check(() if backend is None else (backend,))
        self._remote(remote_agent_name).tell(note(notif_msg))

    def has_told(self, remote_agent_name: str | bytes) -> bool:
        """Tell whether all notifications to an agent have left; dlslime's own, none of NIXL's.

        Raises:
            nixlNotFoundError: it is not known.
        """
        return self._remote(remote_agent_name).has_told()

    def send_local_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Is not supported."""
        raise b.nixlNotSupportedError(NO_EXCHANGE)

    send_partial_agent_metadata = send_local_metadata
    fetch_remote_metadata = send_local_metadata
    invalidate_local_metadata = send_local_metadata


def text(name: str | bytes) -> str:
    """Return an agent's name; NIXL gives and takes both."""
    return name.decode() if isinstance(name, bytes) else name


def note(message: bytes | str) -> bytes:
    """Return a notification as bytes.

    Raises:
        nixlInvalidParamError: it is too long.
    """
    content = message.encode() if isinstance(message, str) else bytes(message)
    if len(content) > NOTE_BYTES:
        raise b.nixlInvalidParamError(
            f"a notification of {len(content)} bytes; at most {NOTE_BYTES} are possible"
        )
    return content
