"""Starts the ranks of a program on this host, without a launcher that looks up the host's name.

    python benchmarks/gpu/runner/launch.py RANKS PROGRAM ARGUMENTS...

torchrun starts no rank if the hostname does not resolve, and costs an extra import of torch. The
ranks find each other at 127.0.0.1. After a failure the other ranks have some seconds to report
their own errors; the exit status is that of the first failure.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 5.0


def free_port() -> int:
    """Return a port of 127.0.0.1 that is unused now, and never given out by the kernel."""
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(least // 2, least)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start(ranks: int, command: list[str]) -> list[subprocess.Popen[bytes]]:
    """Start the ranks with the environment that `init_process_group` reads."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    started = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(
            subprocess.Popen([sys.executable, *command], env={**os.environ, **shared, **own})
        )
    return started


def wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks; return the first status that is not 0, or 0."""
    first, end = 0, None
    while any(rank.poll() is None for rank in ranks):
        for number, rank in enumerate(ranks):
            if rank.poll() and not first:
                first = rank.returncode
                end = time.monotonic() + GRACE_S
                print(f"rank {number} ended with status {first}", flush=True)
        if end is not None and time.monotonic() > end:
            for rank in ranks:
                rank.kill()
        time.sleep(0.02)
    return first or next((rank.returncode for rank in ranks if rank.returncode), 0)


def main() -> int:
    """Start the ranks, and return the exit status."""
    status = wait(start(int(sys.argv[1]), sys.argv[2:]))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
