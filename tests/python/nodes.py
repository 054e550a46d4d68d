"""Workers on the lab's other node (tests/lab), which look to the pool like local processes.

pytest runs on node 0 and listens at MASTER_ADDR; `python nodes.py` on node 1 connects to it and
starts workers on demand. A worker connects by TCP, too, and from then on its connection is like a
pipe.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import worker

COUNT = int(os.environ.get("DLSLIME_TEST_NODES", "1"))
PATIENCE = worker.PATIENCE
# Where the stores' server is: this process, as all nodes see it.
ADDRESS = os.environ["MASTER_ADDR"] if COUNT > 1 else "127.0.0.1"
_PORT = 29600
_KEY = b"dlslime-lab"  # against mistakes, not against people: the lab's network is this machine's
_AGENT_SECONDS = 120

_tickets = itertools.count()


def of_rank(rank: int, size: int) -> int:
    """The node on which a rank lives: the first half on node 0."""
    return rank * COUNT // size


class _Agent:
    """The other node, as pytest sees it."""

    def __init__(self) -> None:
        self._listener = Listener((ADDRESS, _PORT), authkey=_KEY, backlog=64)
        self._connection = self._listener.accept()

    def ask(self, *question: Any) -> Any:
        """Sends a question and returns the answer."""
        self._connection.send(question)
        return self._connection.recv()

    def start(self, env: Mapping[str, str], ticket: int) -> tuple[int, Connection]:
        """Starts a worker; returns its process number and its connection."""
        pid = self.ask("start", dict(env), ticket)
        connection = self._listener.accept()
        assert connection.recv() == ticket
        return pid, connection


@functools.cache
def _agent() -> _Agent:
    return _Agent()


class RemoteProcess:
    """The part of multiprocessing.Process that the pool uses."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._ticket = next(_tickets)
        self.pid, self.connection = _agent().start(env, self._ticket)
        self.sentinel = self.connection  # its end is the connection's

    @property
    def exitcode(self) -> int | None:
        """As that of a local process."""
        return _agent().ask("exitcode", self._ticket)

    def is_alive(self) -> bool:
        """As that of a local process."""
        return self.exitcode is None

    def join(self, seconds: float) -> None:
        """Waits for its end."""
        _agent().ask("join", self._ticket, seconds)

    def send_signal(self, number: int) -> None:
        """As os.kill()."""
        _agent().ask("signal", self._ticket, number)

    def kill(self) -> None:
        """As that of a local process."""
        self.send_signal(signal.SIGKILL)

    def output(self, start: int) -> bytes:
        """What it wrote from this byte on."""
        return _agent().ask("output", self._ticket, start)


class Launch:
    """A command on the other node; it runs from the beginning."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], seconds: float) -> None:
        self._ticket = next(_tickets)
        self._seconds = seconds
        _agent().ask("launch", self._ticket, list(command), dict(env))

    def result(self) -> tuple[int | None, str]:
        """Waits; returns the exit status, None where it had to be killed, and what it wrote."""
        return _agent().ask("await_launch", self._ticket, self._seconds)


def free_port() -> int:
    """A TCP port of this node that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


def _worker_main(env: Mapping[str, str], ticket: int, path: str) -> None:
    connection = Client((ADDRESS, _PORT), authkey=_KEY)
    connection.send(ticket)
    worker.main(connection, env, path)


class _Node:
    """The other node's side of the questions."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._processes: dict[int, Any] = {}
        self._launches: dict[int, subprocess.Popen] = {}

    @staticmethod
    def _path(ticket: int) -> Path:
        return Path(f"/tmp/worker{ticket}")

    def start(self, env: dict[str, str], ticket: int) -> int:
        self._path(ticket).touch()
        process = self._context.Process(
            target=_worker_main, args=(env, ticket, str(self._path(ticket)))
        )
        process.start()
        self._processes[ticket] = process
        return process.pid

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
            launch.terminate()  # torchrun ends its ranks, which are in sessions of their own
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
        if self._processes[ticket].is_alive():
            os.kill(self._processes[ticket].pid, number)

    def output(self, ticket: int, start: int) -> bytes:
        return self._path(ticket).read_bytes()[start:]

    def serve(self, connection: Connection) -> None:
        """Answers questions until pytest ends."""
        while True:
            try:
                name, *arguments = connection.recv()
            except (EOFError, ConnectionResetError):
                return
            connection.send(getattr(self, name)(*arguments))


def _connect() -> Connection:
    deadline = time.monotonic() + _AGENT_SECONDS
    while True:
        try:
            return Client((ADDRESS, _PORT), authkey=_KEY)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> int:
    """The other node's process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "pytest", "worker", "nodes"])
    node = _Node(context)
    node.serve(_connect())
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "lab")]
    sys.exit(main())
