"""Attacks on a job by other users, strangers and dishonest members (docs/security.md)."""

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys

import pytest

import dlslime_backend
from dlslime_backend._load import extension
from harness import dlslime_only, init_group, run_world, sync
from paths import PROGRAMS
from patterns import blank, expect_pattern, pattern
from raw_handshake import (
    ACCEPTED,
    REFUSED,
    STRANGER,
    Address,
    Initiator,
    blob,
    connect_to,
    receive_frame,
)
from test_endpoint import met
from test_groups import exchange
from test_one_sided import Side

pytestmark = dlslime_only

_NOBODY = 65534
_STRANGER = PROGRAMS / "other_user.py"
another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")


def _stranger(*arguments: str) -> subprocess.Popen[str]:
    """Start a process of another user."""
    command = [sys.executable, "-I", str(_STRANGER), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said(stranger: subprocess.Popen[str]) -> dict[str, int]:
    output, _ = stranger.communicate(timeout=60)
    assert stranger.returncode == 0
    said: dict[str, int] = json.loads(output.splitlines()[-1])
    return said


def _works(rank: int, endpoint: dlslime_backend.Endpoint) -> None:
    """Send messages both ways over the pair, and check that the messages come."""
    received = blank(300_000)
    transfers = [
        endpoint.send(pattern(300_000, rank), tag=rank),
        endpoint.recv(received, tag=1 - rank),
    ]
    for transfer in transfers:
        transfer.wait()
    expect_pattern(received, 1 - rank)


def _refuses_another_user(rank: int, size: int, times: int) -> None:
    endpoint = met(rank)
    _works(rank, endpoint)
    if rank == 0:
        said = _said(_stranger("connect", endpoint.address.hex(), str(times)))
        assert said == {"answered": 0}
    sync("attacked")
    _works(rank, endpoint)


@another_user
def test_another_user_is_dropped_before_a_byte_is_read_and_is_two_lines() -> None:
    """The other user's process knows all that a member knows, also the token."""
    results = run_world(_refuses_another_user, 2, 500, init=False, fresh=True, with_output=True)
    lines = results[0][1].splitlines()
    assert len(lines) == 2, lines
    assert "uid 65534 was refused: only processes of uid 0 may connect" in lines[0]
    assert "of their own: 499, the last from" in lines[1]


def _tells_another_user_nothing(rank: int, size: int) -> None:
    """The address leads to another user's process, which took the name of an ended process."""
    endpoint = dlslime_backend.Endpoint("of us", timeout=3)
    gone = dlslime_backend.Endpoint("gone").address
    name = Address.of_endpoint(gone).socket_name
    taken = name[:-4] + b"evil"
    stranger = _stranger("listen", taken.decode())
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "listening\n"
    ours = Address.of_endpoint(gone).instance
    endpoint.connect(gone.replace(name, taken).replace(ours, bytes(16)))  # of another process
    with pytest.raises(TimeoutError, match="uid 65534.*no handshake is begun"):
        endpoint.send(pattern(8), tag=0).wait()
    said = _said(stranger)
    assert said.pop("connections") > 0
    assert said == {"bytes": 0, "descriptors": 0}


@another_user
def test_listener_of_another_user_is_told_nothing() -> None:
    run_world(_tells_another_user_nothing, 1, init=False, fresh=True)


def _meets_another_user(rank: int, size: int) -> None:
    for module in ("_backend", "report"):  # while files may be read
        importlib.import_module(f"dlslime_backend.{module}")
    extension()
    if rank == 1:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    init_group()
    exchange(None, 1, 300_000)
    told = dlslime_backend.explain(1 - rank)
    assert told["route"] == "tcp"
    assert "another user" in str(told["rejected"])


@another_user
def test_members_of_two_users_meet_by_the_network() -> None:
    env = {"DLSLIME_SOCKET_IFNAME": "=lo", "DLSLIME_FALLBACK": "allow"}
    run_world(_meets_another_user, 2, env=env, init=False, fresh=True)


def _guesses(client: socket.socket, known: Address) -> None:
    """Go through the handshake with a secret other than the token."""
    attack = Initiator(known, secret=bytes(32))
    client.sendall(blob(attack.greeting()))
    challenge = receive_frame(client)
    assert challenge is not None
    assert known.token not in challenge
    assert attack.take_challenge(challenge)[0] == ACCEPTED
    client.sendall(blob(attack.seal(0, attack.hello(known.contact))))
    assert receive_frame(client) is None


def _refuses_strangers(rank: int, size: int, times: int) -> None:
    """Processes of the same user without the token, as in a neighbouring container."""
    endpoint = met(rank)
    _works(rank, endpoint)
    if rank == 0:
        known = Address.of_endpoint(endpoint.address)
        for i in range(times):
            client = connect_to(known.socket_name)
            if i % 2:
                _guesses(client, known)
            else:
                with contextlib.suppress(ConnectionError):  # refused in the middle of the send
                    client.sendall(os.urandom(i % 5000))
            client.close()
    sync("attacked")
    _works(rank, endpoint)


def test_strangers_without_the_token_learn_nothing_and_are_few_lines() -> None:
    results = run_world(_refuses_strangers, 2, 1000, init=False, fresh=True, with_output=True)
    lines = results[0][1].splitlines()
    assert 2 <= len(lines) <= 10, lines
    assert "of their own: " in lines[-1]


def _answers_members(rank: int, size: int) -> None:
    """The handshake of the document, by an implementation other than dlslime's."""
    endpoint = met(rank)
    _works(rank, endpoint)
    if rank == 0:
        known = Address.of_endpoint(endpoint.address)
        member = Initiator(known)
        client = connect_to(known.socket_name)
        client.sendall(blob(member.greeting()))
        challenge = receive_frame(client)
        assert challenge is not None
        assert member.take_challenge(challenge)[0] == ACCEPTED
        client.sendall(blob(member.seal(0, member.hello(known.contact))))
        welcome = receive_frame(client)
        assert welcome is not None
        assert member.open(welcome)[10] == REFUSED  # no such route exists
        other = Initiator(known)
        other.address.instance = bytes(16)
        client = connect_to(known.socket_name)
        client.sendall(blob(other.greeting()))
        challenge = receive_frame(client)
        assert challenge is not None
        assert other.take_challenge(challenge)[0] == STRANGER
    sync("asked")
    _works(rank, endpoint)


def test_handshake_is_as_documented() -> None:
    run_world(_answers_members, 2, init=False, fresh=True)


def _keeps_its_secrets(rank: int, size: int) -> None:
    """Half-open connections by the hundred, while a pair meets for the first time."""
    endpoint = met(rank)
    known = Address.of_endpoint(endpoint.address)
    idle = [connect_to(known.socket_name) for _ in range(600)]
    side = Side(endpoint, 1 - rank)
    side.read([(0, 0, 100)]).wait()
    for client in idle:
        client.close()
    sync("read")


def test_hundreds_of_half_open_connections_keep_no_peer_out() -> None:
    run_world(_keeps_its_secrets, 2, init=False, fresh=True, env={"DLSLIME_LOG": "error"})
