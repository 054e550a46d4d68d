"""Worlds of ranks for the tests, without the price of importing torch in each.

`run_world(fn, size, *args)` calls `fn(rank, size, *args)` in `size` processes, between
init_process_group and destroy_process_group, and returns the ranks' results in order of rank. The
processes come from a pool, with a pool for each environment, and live as long as the test run. The
processes of a world that failed, hung or asked for `fresh=True` are killed and replaced by new
forks.

`fn`, its arguments and its result are pickled: `fn` must be at the top level of its module.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait as wait_any
from typing import Any

import pytest

import nodes
import pool
import worker
from worker import (  # re-exported for the ranks' functions
    PATIENCE,
    await_death,
    await_key,
    context,
    init_group,
    keep,
    send_signal,
    stopped,
    sync,
    tell,
)

__all__ = [
    "BACKEND",
    "PATIENCE",
    "ROUTE",
    "Died",
    "WorldError",
    "all_routes",
    "await_death",
    "await_key",
    "context",
    "dlslime_only",
    "init_group",
    "keep",
    "run_world",
    "send_signal",
    "stopped",
    "sync",
    "tell",
]

BACKEND = os.environ.get("DLSLIME_TEST_BACKEND", "dlslime")
# Default route between the first rank and the last.
ROUTE = "shm" if nodes.COUNT == 1 else "rdma"

# Time for the rest of a world once a rank has failed.
_GRACE_SECONDS = 2.5

dlslime_only = pytest.mark.skipif(
    BACKEND != "dlslime", reason=f"states what dlslime does, not {BACKEND}"
)


def _routes() -> list[Any]:
    if BACKEND != "dlslime":
        return [pytest.param({}, id=BACKEND)]
    if nodes.COUNT > 1:
        return [pytest.param({}, id=ROUTE)]
    return [
        pytest.param({}, id=ROUTE),
        pytest.param({"DLSLIME_CMA": "off"}, id="staged"),
        pytest.param({"DLSLIME_ROUTE": "tcp"}, id="tcp_route"),
        pytest.param({"DLSLIME_ROUTE": "gloo"}, id="gloo_route"),
    ]


# Runs a test once per way that bytes can take on one host.
all_routes = pytest.mark.parametrize("env", _routes())


class WorldError(AssertionError):
    """A rank raised, died or outlived the deadline; the text has the story of every rank."""


class Died:
    """The result of a rank that was allowed to die, and died."""

    def __init__(self, exitcode: int | None) -> None:
        self.exitcode = exitcode


def run_world(
    fn: Callable[..., Any],
    size: int,
    *args: Any,
    backend: str | None = None,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    timeout: float = 60,
    fresh: bool = False,
    init: bool = True,
    sync_end: bool = True,
    may_die: Sequence[int] = (),
    group_timeout: float = 30,
    world: str | None = None,
    with_output: bool = False,
    **init_kwargs: Any,
) -> list[Any]:
    """Run `fn(rank, size, *args)` in `size` ranks and return the ranks' results.

    Args:
        fn: a function at the top level of a module.
        size: number of ranks.
        args: further arguments of `fn`.
        backend: name given to init_process_group; default: the backend under test.
        env: environment variables, a set for all ranks or a sequence with a set for each rank.
        timeout: seconds after which the ranks' stacks are dumped and the ranks killed; PATIENCE
            times as many in the lab.
        fresh: use processes that ran nothing before, and run nothing afterwards.
        init: whether the harness makes the group; without, `fn` calls `init_group`.
        sync_end: whether the ranks wait for each other between `fn` and destroying the group.
        may_die: ranks that may end without a result, with a `Died` as their result.
        group_timeout: time-out of the group in seconds; PATIENCE times as many in the lab.
        world: prefix in the store, for using a prefix twice; default: a new prefix.
        with_output: return pairs of a rank's result and the rank's stdout and stderr.
        init_kwargs: further arguments of init_process_group.

    Raises:
        WorldError: a rank raised, died or did not end in time.
    """
    __tracebackhide__ = True
    envs = [env or {}] * size if env is None or isinstance(env, Mapping) else list(env)
    members = pool.lease(envs, fresh or bool(may_die))
    name = world or pool.unique_world()
    for rank, member in enumerate(members):
        job = worker.Job(
            fn,
            args,
            rank,
            size,
            backend or BACKEND,
            name,
            nodes.ADDRESS,
            pool.store_port(),
            init,
            sync_end and not may_die,
            group_timeout * PATIENCE,
            init_kwargs,
        )
        member.submit(pickle.dumps(job))
    reports = _collect(members, timeout, set(may_die), name)
    return _conclude(members, reports, fresh or bool(may_die), set(may_die), with_output)


def _collect(
    members: list[pool.Member], timeout: float, may_die: set[int], world: str
) -> dict[int, Any]:
    """Gather pairs (ok, result or text) by rank; a missing rank did not end in time."""
    reports: dict[int, Any] = {}
    deadline = time.monotonic() + timeout * PATIENCE
    while len(reports) < len(members):
        open_ranks = {r: m for r, m in enumerate(members) if r not in reports}
        handles = {m.connection: r for r, m in open_ranks.items()}
        handles.update({m.process.sentinel: r for r, m in open_ranks.items()})
        ready = wait_any(list(handles), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for rank in {handles[handle] for handle in ready}:
            report = members[rank].report(rank in may_die)
            if isinstance(report, worker.Signal):
                members[report.rank].process.send_signal(report.number)
                members[rank].served()
                continue
            reports[rank] = report
            if report[1] is pool.DIED:
                pool.tell_of_death(world, rank)
            if not report[0]:
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    return reports


def _conclude(
    members: list[pool.Member],
    reports: dict[int, Any],
    discard: bool,
    may_die: set[int],
    with_output: bool,
) -> list[Any]:
    __tracebackhide__ = True
    failed = len(reports) < len(members) or not all(ok for ok, _ in reports.values())
    if failed:
        text = _story(members, reports)
        pool.discard(members)
        raise WorldError(text)
    results = [_result(members[rank], reports[rank][1]) for rank in range(len(members))]
    if with_output:
        results = [(r, m.output()) for r, m in zip(results, members, strict=True)]
    if discard:
        pool.discard(members)
    else:
        pool.give_back(members)
    return results


def _result(member: pool.Member, value: Any) -> Any:
    return Died(member.process.exitcode()) if value is pool.DIED else value


def _story(members: list[pool.Member], reports: dict[int, Any]) -> str:
    """Return the stories of all ranks, with the stacks of running ranks and the ends of outputs."""
    for rank, member in enumerate(members):
        if rank not in reports:
            member.dump_stacks()
    lines = []
    for rank, member in enumerate(members):
        ok, value = reports.get(rank, (False, "did not end in time; its stacks are below"))
        lines.append(f"--- rank {rank}: {'returned' if ok else value}")
        output = member.output()
        if output:
            lines.append(f"--- rank {rank} wrote:\n{output[-6000:]}")
    return "\n".join(lines)
