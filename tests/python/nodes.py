"""Workers on the lab's other node (tests/lab), with the interface of the pool's local workers.

pytest runs on node 0 and listens at MASTER_ADDR. `python nodes.py` on node 1, the agent, connects
to pytest and starts workers on demand. A worker connects by TCP, too, and from then on the
connection works like a pipe.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import worker
from paths import FOLDERS, ROOT

COUNT = int(os.environ.get("DLSLIME_TEST_NODES", "1"))
PATIENCE = worker.PATIENCE
# Address of the stores' server in the process of pytest, as seen from all nodes.
ADDRESS = os.environ["MASTER_ADDR"] if COUNT > 1 else "127.0.0.1"
_PORT = 29600
# Limit for the agent's process to start, or to get processor time.
_AGENT_SECONDS = 120

_tickets = itertools.count()


def of_rank(rank: int, size: int) -> int:
    """Return the node of a rank: node 0 has the first half of the ranks."""
    return rank * COUNT // size


class _Agent:
    """The other node, as pytest sees it; the test run ends with the node."""

    def __init__(self) -> None:
        self._listener = socket.create_server((ADDRESS, _PORT), backlog=64)
        self._listener.settimeout(_AGENT_SECONDS)
        self._connection = self._accept()

    def _accept(self) -> Connection:
        try:
            return Connection(self._listener.accept()[0].detach())
        except TimeoutError:
            pytest.exit(f"nothing came from the lab's other node for {_AGENT_SECONDS} s", 1)

    def ask(self, *question: Any, seconds: float = 0.0) -> Any:
        """Send a question and return the answer, or raise the error of the other node."""
        try:
            self._connection.send(question)
            if self._connection.poll(seconds + _AGENT_SECONDS):
                ok, answer = self._connection.recv()
                if ok:
                    return answer
                raise RuntimeError(f"the lab's other node: {answer}")
        except (EOFError, OSError):
            pass
        self._connection.close()  # no later question may wait
        pytest.exit(f"the lab's other node gave no answer to {question[0]}", 1)

    def start(self, env: Mapping[str, str], ticket: int) -> Connection:
        """Start a worker and return its connection."""
        self.ask("start", dict(env), ticket)
        connection = self._accept()
        assert connection.recv() == ticket
        return connection


@functools.cache
def _agent() -> _Agent:
    return _Agent()


class RemoteWorker:
    """A worker on the other node, with the interface of pool.LocalWorker."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._ticket = next(_tickets)
        self.connection = _agent().start(env, self._ticket)
        self.sentinel = self.connection  # the worker's end is the connection's end

    def exitcode(self) -> int | None:
        """Return the exit code of the worker; None while the worker runs."""
        return _agent().ask("exitcode", self._ticket)

    def join(self, seconds: float) -> None:
        """Wait until the worker has ended."""
        _agent().ask("join", self._ticket, seconds, seconds=seconds)

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker, unless the worker has ended."""
        _agent().ask("signal", self._ticket, number)

    def output(self, start: int) -> bytes:
        """Return the output of the worker from byte `start` on."""
        return _agent().ask("output", self._ticket, start)

    def remove_output(self) -> None:
        """Delete the file of the worker's output."""
        _agent().ask("remove_output", self._ticket)


class Launch:
    """A command on the other node, started by the constructor."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], seconds: float) -> None:
        self._ticket = next(_tickets)
        self._seconds = seconds
        _agent().ask("launch", self._ticket, list(command), dict(env))

    def result(self) -> tuple[int | None, str]:
        """Wait, and return the exit status (None if the command was killed) and the output."""
        seconds = self._seconds
        return _agent().ask("await_launch", self._ticket, seconds, seconds=seconds)


_WORKERS = 8  # of pytest-xdist, at most
_ports: dict[int, Iterator[int]] = {}  # by process: a forked child inherits the table of its parent


def free_port() -> int:
    """Return a TCP port of the node that is unused now and never given out by the kernel.

    The caller binds the port some time later: no other worker of pytest-xdist gets the port, and
    the calling process gets the port again only after all its other ports.
    """
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    each = least // 2 // _WORKERS
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    ports = _ports.setdefault(os.getpid(), itertools.count(101 * os.getpid()))
    while True:
        port = least // 2 + number * each + next(ports) % each
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((ADDRESS, port))
            return port


def _dial() -> Connection:
    return Connection(socket.create_connection((ADDRESS, _PORT)).detach())


def _worker_main(env: Mapping[str, str], ticket: int, path: str) -> None:
    connection = _dial()
    connection.send(ticket)
    worker.main(connection, env, path)


class _Node:
    """The answers of the other node to the questions of pytest."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._processes: dict[int, Any] = {}
        self._launches: dict[int, subprocess.Popen] = {}

    @staticmethod
    def _path(ticket: int) -> Path:
        return Path(f"/tmp/worker{ticket}")

    def start(self, env: dict[str, str], ticket: int) -> None:
        self._path(ticket).touch()
        process = self._context.Process(
            target=_worker_main, args=(env, ticket, str(self._path(ticket)))
        )
        process.start()
        self._processes[ticket] = process

    def launch(self, ticket: int, command: list[str], env: dict[str, str]) -> None:
        with self._path(ticket).open("w") as output:
            self._launches[ticket] = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | env,
                start_new_session=True,
            )

    def await_launch(self, ticket: int, seconds: float) -> tuple[int | None, str]:
        launch = self._launches.pop(ticket)
        try:
            status = launch.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            launch.terminate()  # torchrun ends its ranks, which run in sessions of their own
            with contextlib.suppress(subprocess.TimeoutExpired):
                launch.wait(20)
            launch.kill()
            launch.wait()
        return status, self._path(ticket).read_text(errors="replace")

    def exitcode(self, ticket: int) -> int | None:
        return self._processes[ticket].exitcode

    def join(self, ticket: int, seconds: float) -> None:
        self._processes[ticket].join(seconds)

    def signal(self, ticket: int, number: int) -> None:
        worker.signal_process(self._processes[ticket], number)

    def output(self, ticket: int, start: int) -> bytes:
        return self._path(ticket).read_bytes()[start:]

    def remove_output(self, ticket: int) -> None:
        self._path(ticket).unlink()

    def serve(self, connection: Connection) -> None:
        """Answer questions until pytest ends."""
        while True:
            try:
                name, *arguments = connection.recv()
            except (EOFError, ConnectionResetError):
                return
            try:
                reply = True, getattr(self, name)(*arguments)
            except Exception:  # noqa: BLE001  pytest gets the traceback
                reply = False, traceback.format_exc()
            connection.send(reply)


def _connect() -> Connection:
    deadline = time.monotonic() + _AGENT_SECONDS
    while True:
        try:
            return _dial()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> int:
    """Run the agent on the other node."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "pytest", "worker", "nodes"])
    node = _Node(context)
    node.serve(_connect())
    return 0


if __name__ == "__main__":
    sys.path[:0] = [*FOLDERS, str(ROOT / "tests" / "lab")]
    sys.exit(main())
