"""The listener's socket: connections with garbage are refused, logged and forgotten."""

import contextlib
import os
import random
import socket
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness import dlslime_only, run_world, sync
from polling import eventually
from raw_handshake import VERSION, Address, Initiator, blob
from test_groups import exchange

pytestmark = dlslime_only


def _greeting(version: int = VERSION) -> bytes:
    """Return a greeting in the form of a peer's, with guessed instances."""
    return Initiator(Address(bytes(16), b"", b"", b"", 0)).greeting(version)


GARBAGE = {
    "nothing": b"",
    "one byte": b"\x01",
    "zeros": bytes(256),
    "ones": b"\xff" * 256,
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "small frame": blob(b"x"),
    "oversized frame": struct.pack("<I", 0xFFFFFFFF) + bytes(100),
    "random": random.Random(1).randbytes(5000),
    "megabyte": random.Random(2).randbytes(1 << 20),
    "wrong instance": blob(_greeting()),
    "wrong version": blob(_greeting(version=99)),
    "wrong magic": blob(b"DLSLIME0" + _greeting()[8:]),
    "truncated greeting": blob(_greeting()[:-9]),
    "half a greeting": blob(_greeting())[:70],
    "greeting with more behind it": blob(_greeting() + bytes(9)),
    "length beyond the greeting": blob(_greeting()[:-36] + b"\xff\xff\xff\x7f" + bytes(32)),
}


def _connect() -> socket.socket:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10)
    client.connect(b"\0" + backend.listener_address.encode())  # an abstract name
    return client


def _send(client: socket.socket, data: bytes) -> None:
    try:
        client.sendall(data)
    except OSError:
        return  # a refusal while sending is as good as a later refusal


def _is_closed(client: socket.socket) -> bool:
    """Tell whether the listener hangs up; bytes sent before do not matter."""
    try:
        while client.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _refusals() -> list[str]:
    """Return the lines about refusals in the process's output."""
    lines = Path("/proc/self/fd/1").read_text().splitlines()
    return [line for line in lines if "refused" in line]


def _garbage(rank: int, size: int, data: bytes) -> None:
    exchange(None, 1)
    sync("connected")
    before = _descriptors()
    if rank == 0:
        for _ in range(2):
            client = _connect()
            _send(client, data)
            client.shutdown(socket.SHUT_WR)
            assert _is_closed(client)
            client.close()
    sync("refused")
    assert _descriptors() <= before
    exchange(None, 2, 300_000)
    exchange(dist.new_group(), 3)
    dist.barrier()
    sync("over")
    dist.destroy_process_group()
    if rank == 0:
        # The engine tells of the second refusal at its end; a thread may hold the engine for a
        # moment.
        eventually(lambda: len(_refusals()) == 2, what="the second refusal is not told")


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_and_traffic_goes_on(name: str) -> None:
    env = {"DLSLIME_LOG": "warn"}
    results = run_world(_garbage, 2, GARBAGE[name], env=env, fresh=True, with_output=True)
    assert "refused" in results[0][1], "it is logged"
    lines = results[0][1].splitlines()
    assert len(lines) == 2, lines
    assert "was refused" in lines[0]
    assert "was refused" in lines[1] or "of their own: 1, the last from" in lines[1]
    assert results[1][1] == ""


def _flood(rank: int, size: int) -> None:
    """Hundreds of strangers connect; some send no byte and stay."""
    exchange(None, 1)
    before = _descriptors()
    if rank == 0:
        silent = [_connect() for _ in range(50)]
        for i in range(200):
            client = _connect()
            _send(client, random.Random(i).randbytes(i))
            client.close()
        exchange(None, 2, 200_000)
        for client in silent:
            client.close()
        eventually(lambda: _descriptors() <= before, what="descriptors of strangers stay open")
    else:
        exchange(None, 2, 200_000)


def test_hundreds_of_strangers_leave_no_descriptors() -> None:
    run_world(_flood, 2, env={"DLSLIME_LOG": "error"}, fresh=True)


def _stranger_before_first_message(rank: int, size: int) -> None:
    """Garbage arrives before the peers have connected; the peers connect all the same."""
    strangers = []
    for data in GARBAGE.values():
        client = _connect()
        _send(client, data[:4096])
        strangers.append(client)
    exchange(None, 1)
    for client in strangers:
        client.close()
    exchange(None, 2)


def test_peers_connect_in_spite_of_silent_strangers() -> None:
    run_world(_stranger_before_first_message, 3, env={"DLSLIME_LOG": "error"}, fresh=True)


def _descriptors_as_payload(rank: int, size: int) -> None:
    """Descriptors sent along with garbage are closed, not kept."""
    exchange(None, 1)
    before = _descriptors()
    if rank == 0:
        for _ in range(20):
            client = _connect()
            with open("/dev/null", "rb") as null, contextlib.suppress(OSError):
                socket.send_fds(client, [b"x" * 64], [null.fileno()] * 8)
            client.close()
        eventually(lambda: _descriptors() <= before)
    sync("closed")
    exchange(None, 2)


def test_descriptors_of_strangers_are_closed() -> None:
    run_world(_descriptors_as_payload, 2, env={"DLSLIME_LOG": "error"}, fresh=True)
