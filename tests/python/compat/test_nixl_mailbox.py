"""Messages of other agents to a NIXL agent: limits for a call, and refused senders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from dlslime_backend.compat.nixl import _remote, nixl_agent
from dlslime_backend.compat.nixl._remote import Mailbox
from harness import dlslime_only
from polling import eventually

pytestmark = dlslime_only

KIB = 1 << 10


class Guest:
    """A guest that stays ahead of its reader: a next note is always ready."""

    def __init__(self, note: bytes, name: bytes = b"flood", fails: Any = None) -> None:
        self._link = SimpleNamespace(receive_note=self._receive)
        self._note, self._name, self._fails = note, name, fails
        self.asked: list[int] = []  # allowed sizes of notes
        self.closed = False

    def _receive(self, tag: int, most: int) -> Any:
        if self._fails is not None:
            raise self._fails
        self.asked.append(most)
        if len(self.asked) > 100_000:
            pytest.fail("the reader does not stop")
        content = self._note if len(self.asked) > 1 else self._name
        return SimpleNamespace(ended=True, wait=lambda _: None, content=content)

    def close(self) -> None:
        self.closed = True


def mailbox_with(*guests: Guest) -> Mailbox:
    mailbox, waiting = Mailbox("here"), list(guests)

    def accept() -> list[Guest]:
        came, waiting[:] = list(waiting), []
        return came

    mailbox._hub.close()
    mailbox._hub = SimpleNamespace(accept=accept)  # type: ignore[assignment]
    return mailbox


@pytest.mark.parametrize(
    ("nbytes", "most"), [(0, 1024), (1, 1024), (64 * KIB, (4 << 20) // (64 * KIB) + 1)]
)
def test_sender_that_stays_ahead_does_not_hold_up_its_reader(nbytes: int, most: int) -> None:
    flood, other = Guest(bytes(nbytes)), Guest(b"o", b"other")
    mailbox = mailbox_with(flood, other)
    for _ in range(3):
        notes = mailbox.collect({})
        assert 0 < len(notes["flood"]) <= most
        assert len(notes["other"]) <= 1024


def test_notes_of_a_real_sender_come_over_several_calls_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_remote, "_MOST_NOTES", 7, raising=False)
    here, sender = nixl_agent("here"), nixl_agent("sender")
    sender.add_remote_agent(here.get_agent_metadata())
    expected = [b"%d" % number for number in range(100)]
    told = [sender._remote("here").tell(note) for note in expected]
    eventually(lambda: all(note.done() for note in told))
    came: list[bytes] = []

    def all_came() -> bool:
        new = here.get_new_notifs().get("sender", [])
        assert len(new) <= 7
        came.extend(new)
        return len(came) >= len(expected)

    eventually(all_came)
    assert came == expected
    assert here.get_new_notifs() == {}


def test_stranger_has_a_smaller_note_until_it_has_told_its_name() -> None:
    guest = Guest(b"x")
    mailbox_with(guest).collect({})
    assert guest.asked[:2] == [16 * KIB, 64 * KIB]


@pytest.mark.parametrize(
    "error", [ValueError("closed"), TimeoutError("late"), dist.DistBackendError("gone")], ids=str
)
def test_guest_that_has_gone_is_let_go_of_and_others_are_heard(error: Exception) -> None:
    gone, good = Guest(b"", fails=error), Guest(b"x", b"good")
    mailbox = mailbox_with(gone, good)
    assert set(mailbox.collect({})) == {"good"}
    assert gone.closed
    assert [sender.name for sender in mailbox._senders] == ["good"]


@pytest.mark.parametrize(
    "name", [b"\xff", b"n" * 4097, bytes(20_000)], ids=["bytes", "4097", "20000"]
)
def test_agent_without_a_name_is_let_go_of(name: bytes) -> None:
    here = nixl_agent("here")
    remote = _remote.Remote("stranger", "here", here._mailbox.address)
    remote._endpoint._link.send_note(_remote.NOTE_TAG, name)
    eventually(lambda: here.get_new_notifs() == {} and not remote_is_known(here, remote))
    remote.close()


def remote_is_known(here: nixl_agent, remote: _remote.Remote) -> bool:
    """Tell whether the pair still exists: a note from a dropped sender fails."""
    note = remote._endpoint._link.send_note(_remote.NOTE_TAG, b"more")
    try:
        note.wait(5)
    except dist.DistBackendError:
        assert here._mailbox._senders == []
        return False
    return True
