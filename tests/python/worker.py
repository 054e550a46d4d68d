"""The worker side of the harness: one process which plays one rank, again and again.

A worker is forked from a process that has imported torch already, so it starts in milliseconds.
It receives jobs (a module-level function, its arguments and the place in the world), runs each in
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

# How much longer everything may take in the lab: a node has one processor, and slow system calls.
PATIENCE = 1 if os.environ.get("DLSLIME_TEST_NODES", "1") == "1" else 3
DEATH = "rank {} is dead"  # what the harness tells of a rank that was allowed to die, and did
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
    """What a rank asks the harness for: to send a signal to the process of a rank."""

    rank: int
    number: int


@dataclasses.dataclass
class Context:
    """What a rank's function may ask about the world it runs in."""

    job: Job
    harness: Connection  # carries nothing else while the function runs
    store: dist.Store  # the group's store
    control: dist.Store  # the same server under another prefix: the tests' own signals


_current: Context | None = None


def context() -> Context:
    """The world this rank runs in now."""
    assert _current is not None, "only a rank's function may ask for its context"
    return _current


def init_group(**overrides: Any) -> None:
    """Calls init_process_group as the job says; `overrides` replace or add arguments."""
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


def tell(key: str, value: str = "1") -> None:
    """Publishes `key` to the other ranks, not through the backend under test."""
    context().control.set(key, value)


def await_key(key: str, seconds: float = 30) -> str:
    """Waits until some rank tells `key`; returns the value."""
    context().control.wait([key], datetime.timedelta(seconds=seconds * PATIENCE))
    return context().control.get(key).decode()


def await_death(rank: int, seconds: float = 30) -> None:
    """Waits until the process of `rank`, one that may die, is gone; its host does not matter.

    The harness tells so when it has reaped the process: its descriptors are closed then.
    """
    await_key(DEATH.format(rank), seconds)


def send_signal(rank: int, number: int) -> None:
    """Sends a signal to the process of `rank`; its host does not matter.

    SIGSTOP has stopped every thread of it when this returns.
    """
    context().harness.send_bytes(pickle.dumps(Signal(rank, number)))
    context().harness.recv_bytes()


@contextlib.contextmanager
def stopped(rank: int) -> Iterator[None]:
    """While this goes on, the process of `rank` does nothing; not one of its threads."""
    send_signal(rank, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(rank, signal.SIGCONT)


def sync(key: str, size: int | None = None, seconds: float = 30) -> None:
    """A barrier over the store: returns when `size` ranks (default: all) came to `key`."""
    size = context().job.size if size is None else size
    if context().control.add(f"count/{key}", 1) == size:
        tell(f"full/{key}")
    await_key(f"full/{key}", seconds)


@functools.cache
def _client(address: str, port: int, purpose: str) -> dist.TCPStore:
    # One connection for all jobs: every 25th of many quick ones in a row can take 5 s.
    seconds = datetime.timedelta(seconds=60)
    return dist.TCPStore(address, port, is_master=False, timeout=seconds)


def control_of(world: str, store: dist.Store) -> dist.Store:
    """Where the ranks of `world` signal each other, and the harness them."""
    return dist.PrefixStore(f"{world}/control", store)


def _make_context(job: Job, harness: Connection) -> Context:
    # Two connections: whoever waits in a TCPStore keeps everybody else out of that client.
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
    global _current  # noqa: PLW0603  one job at a time; the functions above read it
    _current = _make_context(job, harness)
    if job.init:
        _init_group(job.group_timeout)
    result = job.fn(job.rank, job.size, *job.args)
    if job.sync_end:
        # Gloo drops what is under way when a peer leaves: only tests about that leave early.
        sync("end", seconds=60)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def _init_group(seconds: float) -> None:
    # Coming together takes its time, however short the time-out that is under test.
    coming = 30 * PATIENCE
    init_group(timeout=datetime.timedelta(seconds=max(seconds, coming)))
    if seconds < coming:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=seconds))


def _reply(harness: Connection) -> bytes:
    job_bytes = harness.recv_bytes()
    try:
        result = _run(pickle.loads(job_bytes), harness)
        return pickle.dumps((True, result))
    except BaseException:  # noqa: BLE001  whatever ended the function is the parent's to judge
        return pickle.dumps((False, traceback.format_exc()))


def _redirect_output(path: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout.reconfigure(line_buffering=True)  # who hangs must have said what it printed


def main(connection: Connection, env: Mapping[str, str], output_path: str) -> None:
    """The worker's life: jobs until the other end of `connection` is closed."""
    # The forkserver ends with the test run, however that ends; no worker may outlive it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _redirect_output(output_path)
    os.environ.update(env)
    if "TORCH_DISTRIBUTED_DEBUG" in env:
        dist.set_debug_level_from_env()  # torch read the variable when it was imported
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
    """Sends a signal to a process of multiprocessing on this host, unless it has ended.

    Returns after SIGSTOP when all its threads have stopped.
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
