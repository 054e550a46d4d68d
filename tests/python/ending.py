"""Processes that end as programs do, by the end of their interpreter, unlike a pool's workers.

`run_ends(fn, size, *args)` calls `fn(rank, size, *args)` in `size` processes, each in a group
unless `init=False`, and returns the exit status and the output of each process. The helpers that
harness offers to functions of ranks (`tell`, `await_key`, `sync`, `init_group`, ...) work here,
too. A launcher with torch imported forks the processes, so a process costs little more than its own
end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import faulthandler
import functools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import worker

# Exit status of rank 0 after its function has returned (rank r: plus r); no fault has the status.
OWN_STATUS = 40
_PR_SET_PDEATHSIG = 1
# Time-out of groups in tests of calls that must not wait: reached only because of a fault.
NEVER = 200.0
# For steps of milliseconds, on a machine that may be busy.
SOON = 60.0


@dataclasses.dataclass
class End:
    """How a process ended."""

    status: int | None  # negative: the signal that ended the process; None: not ended in time
    output: str


def run_ends(
    fn: Callable[..., Any],
    size: int,
    *args: Any,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    group_timeout: float = 30,
    init: bool = True,
) -> list[End]:
    """Run `fn(rank, size, *args)` in `size` processes and return how the processes ended.

    Args:
        fn: a function at the top level of a module.
        size: number of ranks.
        args: further arguments of `fn`.
        env: environment variables of all processes.
        timeout: seconds after which running processes are killed, with their stacks in the output.
        group_timeout: time-out of the group in seconds.
        init: whether the processes make the group; without, `fn` calls `init_group`.
    """
    import nodes
    import pool

    name = pool.unique_world()
    jobs = [
        worker.Job(
            fn,
            args,
            rank,
            size,
            "dlslime",
            name,
            nodes.ADDRESS,
            pool.store_port(),
            init,
            False,
            group_timeout,
            {},
        )
        for rank in range(size)
    ]
    launcher = _launcher()
    launcher.send_bytes(pickle.dumps((jobs, dict(env or {}), timeout)))
    return pickle.loads(launcher.recv_bytes())


def expect_own_statuses(ends: Sequence[End], statuses: Sequence[int] = ()) -> None:
    """Raise AssertionError unless each process ended with its own status, or the status given."""
    expected = list(statuses) or [OWN_STATUS + rank for rank in range(len(ends))]
    story = "".join(f"\n--- rank {r}: {e.status}\n{e.output}" for r, e in enumerate(ends))
    assert [end.status for end in ends] == expected, story


def add_up(group: dist.ProcessGroup | None = None) -> None:
    """Sum up ones over the group."""
    total = torch.ones(3)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [dist.get_world_size(group)] * 3


def record(call: Callable[[], Any], what: str, into: dict[str, tuple[float, str]]) -> None:
    """Note under `what` when and how `call` ended."""
    try:
        call()
        into[what] = (time.time(), "it ended well")
    except (RuntimeError, ValueError) as error:
        into[what] = (time.time(), f"{type(error).__name__}: {error}")


class _Garbage:
    """Calls its action if collected after Python has begun to end; lives on if collected before."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._itself = self
        self._action = action

    def __del__(self) -> None:
        if sys.is_finalizing():
            self._action()
        else:
            _Garbage(self._action)


def at_the_interpreters_end(action: Callable[[], object]) -> None:
    """Call `action` once Python has begun to end: no other thread gets the GIL from then on."""
    atexit.register(_Garbage, action)


def await_end_of(pid: int, seconds: float = 60) -> None:
    """Wait until a process of the host has ended, reaped or not."""
    deadline = time.monotonic() + seconds
    while _runs(pid):
        assert time.monotonic() < deadline, f"process {pid} has not ended"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@functools.cache
def _launcher() -> Connection:
    """Return the connection to the launcher, which ends when the connection is closed."""
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    here = str(Path(__file__).parent)
    paths = [here, *(path for path in sys.path if path)]
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    theirs.close()
    return ours


def _play(job: worker.Job, env: Mapping[str, str], output: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.update(env)
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    worker._current = worker._make_context(job, None)
    if job.init:
        worker._init_group(job.group_timeout)
    job.fn(job.rank, job.size, *job.args)
    sys.exit(OWN_STATUS + job.rank)


def _await(pids: Mapping[int, int], timeout: float) -> dict[int, int | None]:
    """Return the exit statuses of processes by rank; kill processes that do not end in time."""
    statuses: dict[int, int | None] = {}
    deadline = time.monotonic() + timeout
    while len(statuses) < len(pids):
        for rank, pid in pids.items():
            if rank not in statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    statuses[rank] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(0.5)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    statuses[rank] = None
        time.sleep(0.01)
    return statuses


def _serve(connection: Connection) -> None:
    """Serve requests of the launcher's connection until the connection ends; no child returns."""
    while True:
        try:
            jobs, env, timeout = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile("w+b", buffering=0)) for _ in jobs]
            pids: dict[int, int] = {}
            for job, file in zip(jobs, files, strict=True):
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    _play(job, env, file.fileno())
                pids[job.rank] = pid
            statuses = _await(pids, timeout)
            ends = []
            for rank, file in enumerate(files):
                file.seek(0)
                ends.append(End(statuses[rank], file.read().decode(errors="replace")))
        with contextlib.suppress(BrokenPipeError):
            connection.send_bytes(pickle.dumps(ends))


if __name__ == "__main__":
    # Pickled functions need the name that the module has in the parent, not `__main__`.
    import ending

    ending._serve(Connection(int(sys.argv[1])))
