"""The pool of worker processes behind `harness.run_world`, and the store where workers meet."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch.distributed as dist

import nodes
import worker
from paths import FOLDERS

# Environments with workers kept at the same time; the environment unused for longest goes first.
_MAX_ENVIRONMENTS = 4

# A warning of torch about torch's stores, where names of addresses can't be looked up.
_OF_A_RESOLVER = "[c10d] The hostname of the client socket cannot be retrieved"

DIED = object()  # report of a worker that ended without a report, and was allowed to

_counter = itertools.count()
_Key = tuple[int, tuple[tuple[str, str], ...]]  # node and environment
_idle: dict[_Key, list[Member]] = {}
_living: set[Member] = set()


class LocalWorker:
    """A worker process of the node, and the file with its output."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._path = Path(_output_folder()) / f"worker{next(_counter)}"
        self._path.touch()
        self.connection, theirs = _context().Pipe()
        self._process = _context().Process(
            target=worker.main, args=(theirs, dict(env), str(self._path))
        )
        self._process.start()
        theirs.close()
        self.sentinel = self._process.sentinel

    def exitcode(self) -> int | None:
        """Return the exit code of the worker; None while the worker runs."""
        return self._process.exitcode

    def join(self, seconds: float) -> None:
        """Wait until the worker has ended."""
        self._process.join(seconds)

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker, unless the worker has ended."""
        worker.signal_process(self._process, number)

    def output(self, start: int) -> bytes:
        """Return the output of the worker from byte `start` on."""
        return self._path.read_bytes()[start:]

    def remove_output(self) -> None:
        """Delete the file of the worker's output."""
        self._path.unlink(missing_ok=True)


class Member:
    """A worker, which plays one rank at a time."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        node, env = key
        self.process = LocalWorker(dict(env)) if node == 0 else nodes.RemoteWorker(dict(env))
        self.connection = self.process.connection
        self._output_start = 0
        _living.add(self)

    def submit(self, job: bytes) -> None:
        """Start a job; the worker's output from now on belongs to the job."""
        self._output_start += len(self.process.output(self._output_start))
        self.connection.send_bytes(job)

    def report(self, may_die: bool) -> tuple[bool, Any] | worker.Signal:
        """Return the worker's answer or request, or how the worker ended without an answer."""
        try:
            if self.connection.poll():
                return pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            pass
        self.process.join(5)
        if may_die:
            return True, DIED
        return False, f"died with exit code {self.process.exitcode()}"

    def served(self) -> None:
        """Tell the worker that its request has been served."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(b"")

    def output(self) -> str:
        """Return the worker's stdout and stderr since the job's start."""
        text = self.process.output(self._output_start).decode(errors="replace")
        return "".join(line for line in text.splitlines(True) if _OF_A_RESOLVER not in line)

    def dump_stacks(self) -> None:
        """Make the worker write the stacks of all its Python threads into its output."""
        before = len(self.output())
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while len(self.output()) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # for the rest of the stacks

    def kill(self) -> None:
        """End the process and forget its output."""
        _living.discard(self)
        self.connection.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.join(10)
        self.process.remove_output()


def lease(envs: Sequence[Mapping[str, str]], fresh: bool) -> list[Member]:
    """Return a worker for each environment, idle if possible, else new."""
    members = []
    for rank, env in enumerate(envs):
        key = (nodes.of_rank(rank, len(envs)), tuple(sorted(env.items())))
        if not fresh and key in _idle:
            idle = _idle.pop(key)
            members.append(idle.pop(0))
            if idle:
                _idle[key] = idle
        else:
            members.append(Member(key))
    return members


def give_back(members: Sequence[Member]) -> None:
    """Take workers back for the next world of the same environment."""
    returned: dict[_Key, list[Member]] = {}
    for member in members:
        returned.setdefault(member.key, []).append(member)
    for key, those in returned.items():
        # Rank 0 goes first again, so that a worker plays the same rank from test to test.
        _idle[key] = those + _idle.pop(key, [])
    while len(_idle) > _MAX_ENVIRONMENTS * nodes.COUNT:
        discard(_idle.pop(next(iter(_idle))))


def discard(members: Sequence[Member]) -> None:
    """Kill workers."""
    for member in members:
        member.process.send_signal(signal.SIGKILL)
    for member in members:
        member.kill()


def close() -> None:
    """Kill every worker at the end of the test run.

    Workers of the local node go first: Python waits for its children for ever, and the function may
    end early, if the other node is gone.
    """
    _idle.clear()
    here = [member for member in _living if member.key[0] == 0]
    discard(here)
    discard(list(_living))


def unique_world() -> str:
    """Return a prefix for the store that no other world has."""
    return f"world{next(_counter)}"


@functools.cache
def _store() -> dist.TCPStore:
    return dist.TCPStore(nodes.ADDRESS, 0, is_master=True, wait_for_workers=False)


def store_port() -> int:
    """Return the port of the store's server, which lives in the process of pytest."""
    return _store().port


def tell_of_death(world: str, rank: int) -> None:
    """End the waits of a world's other ranks for the death of `rank`."""
    worker.control_of(world, _store()).set(worker.DEATH.format(rank), "1")


@functools.cache
def _output_folder() -> str:
    folder = tempfile.mkdtemp(prefix="dlslime-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _context() -> Any:
    # A forkserver with torch imported makes a new worker in about 10 ms.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "pytest", "worker"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*FOLDERS, before]))
    forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    atexit.register(close)
    return context
