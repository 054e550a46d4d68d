"""Common parts of every benchmark: ranks, interleaved rounds, verified payloads.

Two backends are compared inside common processes: a job makes a process group for each backend, and
rounds alternate between the groups, so that both backends get equal cores and equal noise.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

OPERATION_TIMEOUT = timedelta(seconds=60)


class PayloadError(RuntimeError):
    """Bytes arrived that no rank sent."""


class JobError(RuntimeError):
    """A rank died, raised or did not come back in time."""


# --- ranks -------------------------------------------------------------------------------------


@dataclass
class Rank:
    """A rank of a job: its store, and a process group for each backend under test.

    Attributes:
        cores: processors of the whole job; the rank may be pinned to one of the processors.
        groups: by slot ("base", "ours"); empty in a job that makes its own groups.
    """

    rank: int
    world: int
    store: dist.TCPStore
    cores: list[int]
    groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    _steps: int = 0

    def _key(self) -> str:
        self._steps += 1
        return f"harness/{self._steps}"

    def barrier(self) -> None:
        """Meet the other ranks at the store: no backend takes part, nothing spins."""
        key = self._key()
        if self.store.add(f"{key}/count", 1) == self.world:
            self.store.set(f"{key}/open", "1")
        self.store.wait([f"{key}/open"], OPERATION_TIMEOUT)

    def share(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        key = self._key()
        written: Any = pickle.dumps(value)  # torch declares text only, and takes bytes, too
        self.store.set(f"{key}/{self.rank}", written)
        return [pickle.loads(self.store.get(f"{key}/{i}")) for i in range(self.world)]

    def open_groups(self, backends: dict[str, str]) -> None:
        """Make the default group of the first backend, and another group for each other backend."""
        for number, (slot, backend) in enumerate(backends.items()):
            if number == 0:
                store = dist.PrefixStore("group", self.store)
                dist.init_process_group(
                    backend,
                    store=store,
                    rank=self.rank,
                    world_size=self.world,
                    timeout=OPERATION_TIMEOUT,
                )
                assert dist.group.WORLD is not None
                self.groups[slot] = dist.group.WORLD
            else:
                self.groups[slot] = dist.new_group(backend=backend, timeout=OPERATION_TIMEOUT)


def _rank_main(
    rank: int,
    world: int,
    port: int,
    backends: dict[str, str],
    work: Callable[..., Any],
    args: tuple[Any, ...],
    results: Any,
    pin: bool,
) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if pin:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    with contextlib.suppress(ImportError):
        import dlslime_backend  # noqa: F401 - registers itself, also if not installed
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=OPERATION_TIMEOUT)
        me = Rank(rank, world, store, cores)
        me.open_groups(backends)
        value = work(me, *args)
        me.barrier()
        if backends:
            dist.destroy_process_group()
        results.put((rank, "ok", value))
    except PayloadError as error:
        results.put((rank, "payload", str(error)))
    except Exception as error:  # noqa: BLE001 - the launcher has to hear of any error
        results.put((rank, "error", f"{type(error).__name__}: {error}"))


def run_job(
    work: Callable[..., Any],
    args: tuple[Any, ...] = (),
    *,
    backends: dict[str, str],
    world: int = 2,
    cores: Sequence[int] | None = None,
    pin: bool = False,
    deadline: float = 600,
) -> list[Any]:
    """Run ``work(rank, *args)`` in ``world`` new processes and return the results of all.

    Args:
        work: a module-level function.
        args: handed over after the Rank.
        backends: by slot; the first backend's group is the default group.
        world: number of processes.
        cores: the processors shared by all ranks; None means the first two of the caller's.
        pin: give each rank a core of its own, instead of letting the kernel choose.
        deadline: seconds until the job is given up.

    Raises:
        PayloadError: a rank received wrong data.
        JobError: a rank failed otherwise, or the deadline passed.
    """
    context = mp.get_context("spawn")
    results = context.Queue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or two_cores())  # inherited by the ranks
    try:
        ranks = [
            context.Process(
                target=_rank_main,
                args=(i, world, store.port, backends, work, args, results, pin),
            )
            for i in range(world)
        ]
        for process in ranks:
            process.start()
    finally:
        os.sched_setaffinity(0, before)
    return gather(ranks, results, deadline)


def gather(ranks: list[Any], results: Any, deadline: float) -> list[Any]:
    """Return each rank's entry in ``results``, by rank, and leave no process running.

    Raises:
        PayloadError: a rank received wrong data.
        JobError: a rank failed otherwise, or ``deadline`` seconds have passed.
    """
    try:
        return _collect(ranks, results, deadline)
    finally:
        end = time.monotonic() + 5
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _collect(ranks: list[Any], results: Any, deadline: float) -> list[Any]:
    end = time.monotonic() + deadline
    values: dict[int, Any] = {}
    while len(values) < len(ranks):
        try:
            rank, outcome, value = results.get(timeout=1)
        except queue.Empty:
            dead = [i for i, p in enumerate(ranks) if p.exitcode not in (None, 0)]
            if dead:
                raise JobError(
                    f"rank {dead[0]} died, exit code {ranks[dead[0]].exitcode}"
                ) from None
            if time.monotonic() > end:
                missing = sorted(set(range(len(ranks))) - set(values))
                raise JobError(f"no answer from ranks {missing} in {deadline:.0f} s") from None
            continue
        if outcome == "payload":
            raise PayloadError(f"rank {rank}: {value}")
        if outcome == "error":
            raise JobError(f"rank {rank}: {value}")
        values[rank] = value
    return [values[i] for i in range(len(ranks))]


class Neighbours:
    """How busy other programs keep the machine, from one reading to the next.

    A median of a few microseconds says little if other programs take the processors away for
    milliseconds: the figures carry the share of other programs, so that a reader can judge.
    """

    def __init__(self) -> None:
        self._last = self._now()
        self._share = 0.0

    @staticmethod
    def _now() -> tuple[float, float]:
        ticks = [int(t) for t in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        busy = (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")
        own = sum(os.times()[:4])  # the process and its ended children
        return time.monotonic(), busy - own

    def share(self) -> float:
        """Return the share of all processors used by others since the last reading.

        Readings less than half a second apart belong to one measurement and are equal.
        """
        now = self._now()
        elapsed = now[0] - self._last[0]
        if elapsed >= 0.5:
            used = now[1] - self._last[1]
            self._share = max(0.0, used / elapsed / (os.cpu_count() or 1))
            self._last = now
        return self._share


def two_cores() -> list[int]:
    """Return the first two processors that the process may use, or the only processor."""
    return sorted(os.sched_getaffinity(0))[:2]


# --- rounds and payloads -----------------------------------------------------------------------


def interleave(
    me: Rank, slots: Sequence[str], rounds: int, once: Callable[[str, int], list[float]]
) -> dict[str, list[float]]:
    """Call ``once(slot, round)`` for every slot in every round, in turning order.

    Returns:
        The samples of each slot, all rounds together.
    """
    samples: dict[str, list[float]] = {slot: [] for slot in slots}
    for number in range(rounds):
        for slot in slots if number % 2 == 0 else reversed(slots):
            me.barrier()
            samples[slot] += once(slot, number)
    return samples


class Payload:
    """Bytes that differ from round to round, and show any shift or loss.

    The pattern's period is a prime: no shift by a power of two leaves the pattern unchanged.
    """

    def __init__(self, size: int) -> None:
        self.base = torch.arange(251, dtype=torch.uint8).repeat(size // 251 + 1)[:size]

    def fill(self, buffer: torch.Tensor, number: int) -> None:
        """Write round ``number``'s bytes into ``buffer`` (uint8, of equal size)."""
        torch.add(self.base, number % 256, out=buffer)

    def check(self, buffer: torch.Tensor, number: int, what: str) -> None:
        """Raise PayloadError unless ``buffer`` holds round ``number``'s bytes; spoil the buffer."""
        buffer.sub_(number % 256)
        if not torch.equal(buffer, self.base):
            wrong = (buffer != self.base).nonzero()
            raise PayloadError(
                f"{what}: {len(wrong)} of {buffer.numel()} bytes are wrong, "
                f"the first at {int(wrong[0])}"
            )
        buffer.zero_()
