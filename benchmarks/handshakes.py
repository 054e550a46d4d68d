#!/usr/bin/env python3
"""Time for a pair to meet while other processes crowd the listener of the pair's first end.

    python benchmarks/handshakes.py [--rounds N] [--out NAME]     # benchmarks/results/NAME.json

A process holds an endpoint. Its peer connects and sends eight bytes: alone; beside 1,000 silent
connections; beside 256 handshakes of another process that holds the token and never confirms.
Medians in milliseconds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import dlslime_backend

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

from raw_handshake import Address, Initiator, blob, connect_to, receive_frame  # noqa: E402

RING_BYTES = 1 << 20
SEAL_SHRINK, ADD_SEALS = 2, 1033
SILENT, UNCONFIRMED = 1000, 256


def target(pipe: Connection) -> None:
    """Hold an endpoint for each round, and receive."""
    while True:
        endpoint = dlslime_backend.Endpoint("target")
        pipe.send(endpoint.address)
        peer = pipe.recv()
        if peer is None:
            return
        endpoint.connect(peer)
        received = torch.zeros(8, dtype=torch.uint8)
        endpoint.recv(received, tag=0).wait()
        pipe.send(None)
        pipe.recv()
        endpoint.close()


def _memory(size: int) -> int:
    fd = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, SEAL_SHRINK)
    return fd


def crowd(kind: str, address: bytes, pipe: Connection) -> None:
    """Crowd the listener of an address until told to end."""
    known = Address.of_endpoint(address)
    clients: list[socket.socket] = []
    if kind == "silent":
        clients = [connect_to(known.socket_name) for _ in range(SILENT)]
    page, segment = _memory(4096), _memory(4096 + 2 * RING_BYTES)
    for _ in range(UNCONFIRMED if kind == "unconfirmed" else 0):
        member = Initiator(known)
        client = connect_to(known.socket_name)
        with suppress(OSError, AssertionError):
            client.sendall(blob(member.greeting()))
            member.take_challenge(receive_frame(client) or b"")
            hello = member.hello(known.contact, b"shm", struct.pack("<Q", RING_BYTES), 2)
            client.sendall(blob(member.seal(0, hello)))
            socket.send_fds(client, [b"\0"], [page, segment])
            receive_frame(client)
        clients.append(client)
    pipe.send(None)
    pipe.recv()


def measure(kind: str, rounds: int) -> float:
    """Return the median of the times in milliseconds."""
    context = multiprocessing.get_context("spawn")
    times = []
    for _ in range(rounds):
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs,), daemon=True)
        process.start()
        address = ours.recv()
        crowded, end = context.Pipe()
        other = context.Process(target=crowd, args=(kind, address, end), daemon=True)
        other.start()
        crowded.recv()
        endpoint = dlslime_backend.Endpoint("peer")
        endpoint.connect(address)
        ours.send(endpoint.address)
        begin = time.perf_counter()
        endpoint.send(torch.zeros(8, dtype=torch.uint8), tag=0).wait()
        ours.recv()
        times.append((time.perf_counter() - begin) * 1000)
        crowded.send(None)
        ours.send(None)
        endpoint.close()
        ours.recv()
        ours.send(None)
        for one in (process, other):
            one.join()
    return statistics.median(times)


def main(run: Callable[[str, int], float] = measure) -> None:
    """Measure all three, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default="handshakes")
    options = parser.parse_args()
    result = {
        kind: round(run(kind, options.rounds), 2) for kind in ("alone", "silent", "unconfirmed")
    }
    print(json.dumps(result))
    path = ROOT / "benchmarks" / "results" / f"{options.out}.json"
    path.write_text(json.dumps({"milliseconds": result, "rounds": options.rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
