"""The worker side of the harness: a process that plays one rank, again and again.

A worker is forked from a process with torch imported, so starting takes milliseconds. A worker
receives jobs (a module-level function, its arguments and the place in the world), runs each job in
a process group of its own and sends back the result or the traceback.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import datetime
import faulthandler
import functools
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

# Factor for all time limits in the lab: a node has one processor, and slow system calls.
PATIENCE = 1 if os.environ.get("DLSLIME_TEST_NODES", "1") == "1" else 3
DEATH = "rank {} is dead"  # the harness's key about a rank that was allowed to die, and died
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Job:
    """One rank's share of a world."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    rank: int
    size: int
    backend: str
    world: str  # unique name, the prefix of every key in the store
    store_address: str
    store_port: int
    init: bool
    sync_end: bool
    group_timeout: float
    init_kwargs: Mapping[str, Any]


@dataclasses.dataclass
class Signal:
    """A rank's request to the harness: a signal for the process of a rank."""

    rank: int
    number: int


@dataclasses.dataclass
class Context:
    """A rank's world, for the function of the rank."""

    job: Job
    harness: Connection  # carries nothing else while the function runs
    store: dist.Store  # the group's store
    control: dist.Store  # the same server under another prefix: the tests' own signals
    kept: list[Any] = dataclasses.field(default_factory=list)


_current: Context | None = None


def context() -> Context:
    """Return the world that the rank runs in now."""
    assert _current is not None, "only a rank's function may ask for its context"
    return _current


def init_group(**overrides: Any) -> None:
    """Call init_process_group as the job says; `overrides` replace or add arguments."""
    job = context().job
    arguments: dict[str, Any] = {
        "backend": job.backend,
        "store": context().store,
        "rank": job.rank,
        "world_size": job.size,
        "timeout": datetime.timedelta(seconds=job.group_timeout),
    }
    arguments.update(job.init_kwargs)
    arguments.update(overrides)
    dist.init_process_group(**arguments)


def keep(one: Any) -> None:
    """Keep an object until the functions of all ranks have returned.

    An endpoint ends when dropped, so the peers' operations fail that have not ended yet.
    """
    context().kept.append(one)


def tell(key: str, value: str = "1") -> None:
    """Publish `key` to the other ranks, not through the backend under test."""
    context().control.set(key, value)


def await_key(key: str, seconds: float = 30) -> str:
    """Wait until a rank tells `key`, and return the value."""
    context().control.wait([key], datetime.timedelta(seconds=seconds * PATIENCE))
    return context().control.get(key).decode()


def await_death(rank: int, seconds: float = 30) -> None:
    """Wait until the process of `rank`, a rank that may die, is gone; on any host.

    The harness tells the key after reaping the process, so the process's descriptors are closed.
    """
    await_key(DEATH.format(rank), seconds)


def send_signal(rank: int, number: int) -> None:
    """Send a signal to the process of `rank`, on any host.

    After the return for SIGSTOP, every thread of the process has stopped.
    """
    context().harness.send_bytes(pickle.dumps(Signal(rank, number)))
    context().harness.recv_bytes()


@contextlib.contextmanager
def stopped(rank: int) -> Iterator[None]:
    """Stop all threads of the process of `rank` for a while."""
    send_signal(rank, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(rank, signal.SIGCONT)


def sync(key: str, size: int | None = None, seconds: float = 30) -> None:
    """Wait at a barrier over the store until `size` ranks (default: all) have come to `key`."""
    size = context().job.size if size is None else size
    if context().control.add(f"count/{key}", 1) == size:
        tell(f"full/{key}")
    await_key(f"full/{key}", seconds)


@functools.cache
def _client(address: str, port: int, purpose: str) -> dist.TCPStore:
    # One connection for all jobs: of many connections in quick succession, every 25th can take 5 s.
    seconds = datetime.timedelta(seconds=60)
    return dist.TCPStore(address, port, is_master=False, timeout=seconds)


def control_of(world: str, store: dist.Store) -> dist.Store:
    """Return the store where the ranks of `world` and the harness signal each other."""
    return dist.PrefixStore(f"{world}/control", store)


def _make_context(job: Job, harness: Connection) -> Context:
    # Two connections: a wait in a TCPStore blocks all other uses of the client.
    group, control = (
        _client(job.store_address, job.store_port, purpose) for purpose in ("group", "control")
    )
    return Context(
        job,
        harness,
        dist.PrefixStore(f"{job.world}/group", group),
        control_of(job.world, control),
    )


def _run(job: Job, harness: Connection) -> Any:
    global _current  # noqa: PLW0603  one job at a time; the functions above read the global
    _current = _make_context(job, harness)
    try:
        if job.init:
            _init_group(job.group_timeout)
        result = job.fn(job.rank, job.size, *job.args)
        if job.sync_end:
            # Gloo drops all operations under way when a peer leaves; only tests of leaving leave
            # early.
            sync("end", seconds=60)
    finally:
        _current.kept.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def _init_group(seconds: float) -> None:
    # Connecting takes time, however short the time-out under test.
    coming = 30 * PATIENCE
    init_group(timeout=datetime.timedelta(seconds=max(seconds, coming)))
    if seconds < coming:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=seconds))


def _reply(harness: Connection) -> bytes:
    job_bytes = harness.recv_bytes()
    try:
        result = _run(pickle.loads(job_bytes), harness)
        return pickle.dumps((True, result))
    except BaseException:  # noqa: BLE001  the parent judges any exception
        return pickle.dumps((False, traceback.format_exc()))


def _redirect_output(path: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout.reconfigure(line_buffering=True)  # the output must be complete when the worker hangs


def main(connection: Connection, env: Mapping[str, str], output_path: str) -> None:
    """Run jobs until the peer closes `connection`."""
    # The forkserver ends with the test run, in whatever way; no worker may outlive the forkserver.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _redirect_output(output_path)
    os.environ.update(env)
    if "TORCH_DISTRIBUTED_DEBUG" in env:
        dist.set_debug_level_from_env()  # torch read the variable at its import
    torch.set_num_threads(1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            reply = _reply(connection)
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send_bytes(reply)


def signal_process(process: Any, number: int) -> None:
    """Send a signal to a process of multiprocessing on this host, unless the process has ended.

    After the return for SIGSTOP, all threads of the process have stopped.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # just reaped
        if process.is_alive():
            os.kill(process.pid, number)
            while number == signal.SIGSTOP and set(_thread_states(process.pid)) != {"T"}:
                time.sleep(0.001)


def _thread_states(pid: int) -> Iterator[str]:
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as stat:
            yield stat.read().rpartition(")")[2].split()[0]
