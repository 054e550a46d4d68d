"""The part of an agent for notifications."""

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
    """Notifications: each arrives after the bytes of its transfer, and in its sender's order."""

    _mailbox: Mailbox

    def __init__(self, wanted: Sequence[str]) -> None:
        super().__init__(wanted)
        self.notifs: dict[str, list[bytes]] = {}

    @abstractmethod
    def _remote(self, agent: str | bytes) -> Remote:
        """Return the agent added under a name."""

    def get_new_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Return the notifications received since the last call, by the senders' names.

        A call returns at most 1,024 notifications and about 4 MiB of each sender; the rest comes
        with the next call.
        """
        self._check(backends)
        return self._mailbox.collect({})

    def update_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Add received notifications to `notifs`, and return `notifs`."""
        self._check(backends)
        return self._mailbox.collect(self.notifs)

    def check_remote_xfer_done(
        self,
        remote_agent_name: str | bytes,
        lookup_tag: bytes,
        backends: Sequence[str] = (),
        tag_is_prefix: bool = True,
    ) -> bool:
        """Return whether an agent has sent a notification with a tag; remove the notification.

        Args:
            remote_agent_name: the sender.
            lookup_tag: bytes to look for.
            backends: names given to `create_backend`.
            tag_is_prefix: the notification must begin with the tag, instead of containing the tag.
                The first match in `notifs` counts.
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
        """Send a notification that belongs to no transfer.

        Raises:
            nixlNotFoundError: the agent is unknown.
            nixlInvalidParamError: the notification is longer than 64 KiB.
        """
        self._check(() if backend is None else (backend,))
        self._remote(remote_agent_name).tell(note(notif_msg))

    def send_local_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Raise nixlNotSupportedError: metadata are exchanged by the program."""
        raise b.nixlNotSupportedError(NO_EXCHANGE)

    send_partial_agent_metadata = send_local_metadata
    fetch_remote_metadata = send_local_metadata
    invalidate_local_metadata = send_local_metadata


def text(name: str | bytes) -> str:
    """Return an agent's name as a str; NIXL uses str and bytes."""
    return name.decode() if isinstance(name, bytes) else name


def note(message: bytes | str) -> bytes:
    """Return a notification as bytes.

    Raises:
        nixlInvalidParamError: the notification is longer than 64 KiB.
    """
    content = message.encode() if isinstance(message, str) else bytes(message)
    if len(content) > NOTE_BYTES:
        raise b.nixlInvalidParamError(
            f"a notification of {len(content)} bytes; at most {NOTE_BYTES} are possible"
        )
    return content
