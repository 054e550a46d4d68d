"""Unreachable peers cost no core and fill no log; never reachable peers fail at once."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from dlslime_backend.compat.nixl import nixl_agent
from dlslime_backend.integrations import sglang
from harness import (
    await_death,
    await_key,
    dlslime_only,
    run_world,
    send_signal,
    stopped,
    sync,
    tell,
)
from patterns import blank, expect_pattern, pattern
from polling import eventually
from test_cores import _cpu_share as cpu_share
from test_endpoint import met
from test_one_sided import Side

pytestmark = dlslime_only

# A survivor with a retry every 50 ms uses less than 0.01 of a core; without a pause, all available
# time: half a core and more.
MOST_OF_A_CORE = 0.15
WATCHED = 1.0  # seconds
MOST_LINES = 3  # of each rank


def _hosts(*names: str, **more: str) -> list[dict[str, str]]:
    """Return an environment for each rank, for hosts without common memory."""
    return [{"DLSLIME_HOSTID": name, "DLSLIME_SOCKET_IFNAME": "=lo", **more} for name in names]


def _lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if "dlslime" in line]


WHERE = pytest.mark.parametrize(
    "env", [[{}, {}], _hosts("one", "other")], ids=["on_this_host", "on_another"]
)


def _dead(rank: int, size: int) -> float:
    """Rank 1 publishes its address, and ends before any rank has contacted rank 1."""
    sync("addresses are told")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await_death(1)
    waiting = [dist.irecv(blank(4), 1, tag=tag) for tag in range(3)]
    share = cpu_share(WATCHED)
    for work in waiting:
        # On this host a record newer than the rank's own is of the current life, so no wait is
        # needed.
        if work.is_completed():
            assert "DLSLIME_HOSTID" not in os.environ
            with pytest.raises(dist.DistBackendError, match="its process has ended"):
                work.wait()
    return share


@WHERE
def test_survivor_of_a_rank_that_died_early_uses_no_core(env: list[dict[str, str]]) -> None:
    results = run_world(_dead, 2, env=env, fresh=True, may_die=[1], with_output=True)
    (share, output), _ = results
    assert len(_lines(output)) <= MOST_LINES, f"{len(_lines(output))} lines in {WATCHED} s"
    assert share < MOST_OF_A_CORE, f"{share:.2f} of a core"


def _goes_on(rank: int, size: int) -> None:
    """Rank 2 dies early; rank 0, waiting for rank 2, connects to rank 1 meanwhile, and quickly."""
    sync("addresses are told")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await_death(2)
    if rank == 0:
        dist.irecv(blank(4), 2)
    received = blank(100)
    for work in [dist.isend(pattern(100, rank), 1 - rank), dist.irecv(received, 1 - rank)]:
        work.wait()
    expect_pattern(received, 1 - rank)


@WHERE
def test_other_ranks_are_reached_while_one_is_looked_for(env: list[dict[str, str]]) -> None:
    run_world(_goes_on, 3, env=[*env, env[-1]], fresh=True, may_die=[2])


def _unreachable(rank: int, size: int) -> tuple[str, float]:
    """Rank 0 sends to the unreachable rank 1, which stays until the send has failed."""
    endpoint = met(rank, timeout=20)
    if rank == 1:
        await_key("over")
        return "", 0.0
    send = endpoint.send(blank(4))
    share = 0.0
    # A send refused at once has failed by then.
    with contextlib.suppress(AssertionError):
        eventually(send.done, seconds=10)
    failed = send.done()
    if not failed:
        share = cpu_share(WATCHED)
    text = ""
    try:
        send.wait(0.1)
    except (dist.DistBackendError, TimeoutError) as error:
        text = f"{type(error).__name__} {'at once' if failed else 'late'}: {error}"
    tell("over")
    return text, share


@pytest.mark.parametrize(
    ("interfaces", "fallback", "reason"),
    [("=no-such-interface", "warn", "DLSLIME_SOCKET_IFNAME"), ("=lo", "forbid", "rdma: ")],
    ids=["without_an_address", "without_a_route"],
)
def test_endpoint_that_nothing_leads_to_fails_at_once(
    interfaces: str, fallback: str, reason: str
) -> None:
    env = _hosts("one", "other", DLSLIME_RDMA="off", DLSLIME_FALLBACK=fallback)
    env[1]["DLSLIME_SOCKET_IFNAME"] = interfaces
    results = run_world(_unreachable, 2, env=env, init=False, fresh=True, with_output=True)
    (text, share), output = results[0]
    assert share < MOST_OF_A_CORE, f"{share:.2f} of a core"
    assert len(_lines(output)) <= MOST_LINES, f"{len(_lines(output))} lines"
    assert text.startswith("DistBackendError at once"), text
    assert reason in text
    assert "go by" not in output, "nothing goes by anything"


@contextlib.contextmanager
def _no_descriptors() -> Iterator[None]:
    """Let the process open no descriptor for a while."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in spare:
            os.close(descriptor)


def _exhausted(rank: int, size: int, which: int) -> float:
    """A rank has no descriptor left for a while, when the pair meets for the first time."""
    sync("addresses are told")
    share, received = 0.0, blank(4)
    with _no_descriptors() if rank == which else contextlib.nullcontext():
        sync("there are none")
        receive = dist.irecv(received, 1) if rank == 0 else None
        share = cpu_share(WATCHED)
        sync("watched")
    if receive is None:
        dist.send(pattern(4), 0)
    else:
        receive.wait()
        expect_pattern(received, 0)
    return share if rank == which else 0.0


@pytest.mark.parametrize("which", [0, 1], ids=["end_that_connects", "end_that_is_connected_to"])
def test_lack_of_descriptors_is_waited_out_quietly(which: int) -> None:
    results = run_world(_exhausted, 2, which, fresh=True, with_output=True)
    for share, output in results:
        assert share < MOST_OF_A_CORE, f"{share:.2f} of a core"
        assert len(_lines(output)) <= MOST_LINES, f"{len(_lines(output))} lines"


def _owner(rank: int, size: int) -> tuple[float, float]:
    """Rank 1 reads rank 0's memory and is stopped; rank 0's engine ends and asks for the region."""
    endpoint = met(rank, kept=False)
    side = Side(endpoint, 1 - rank)
    if rank == 1:
        side.read().wait()  # so that the region is lent
        tell("read")
        await_key("over")
        return 0.0, 0.0
    await_key("read")
    gc.collect()
    gc.freeze()  # the measurement must not include a walk over all objects of torch
    with stopped(1):
        begun, used = time.monotonic(), time.process_time()
        endpoint.close()
        del endpoint, side
        gc.collect()
        spent = time.process_time() - used, time.monotonic() - begun
    tell("over")
    return spent


def test_engine_that_ends_waits_asleep_for_a_peer_that_does_not_answer() -> None:
    used, passed = run_world(_owner, 2, init=False, fresh=True)[0]
    assert used < 0.1 or used / passed < MOST_OF_A_CORE, f"{used:.2f} s in {passed:.2f} s"


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _many_at_once(rank: int, size: int, count: int) -> int:
    """Rank 1 is killed during many transfers of rank 0; count the lines of log about the death."""
    kind: Any = nixl_agent if rank == 1 else sglang.Agent
    agent = kind(f"agent {rank}")
    memory = blank(4096)
    agent.register_memory(memory)
    if rank == 1:
        tell("metadata", agent.get_agent_metadata().decode())
        tell("address", str(memory.data_ptr()))
        await_key("never", 60)
    agent.add_remote_agent(await_key("metadata").encode())
    here = agent.get_xfer_descs([(memory.data_ptr(), 64, 0)], "DRAM")
    there = agent.get_xfer_descs([(int(await_key("address")), 64, 0)], "DRAM")
    handles = [agent.initialize_xfer("READ", here, there, "agent 1") for _ in range(count)]
    kept = _Kept()
    logging.getLogger("dlslime.sglang").addHandler(kept)
    send_signal(1, signal.SIGSTOP)
    for handle in handles:
        agent.transfer(handle)
    send_signal(1, signal.SIGKILL)
    await_death(1)
    for handle in handles:
        eventually(lambda h=handle: agent.check_xfer_state(h) != "PROC")  # type: ignore[misc]
    assert {agent.check_xfer_state(handle) for handle in handles} == {"ERR"}
    return len(kept.lines)


def test_agent_that_is_gone_is_told_of_once_and_not_for_each_transfer() -> None:
    lines = run_world(_many_at_once, 2, 100, init=False, may_die=[1])[0]
    assert 1 <= lines <= MOST_LINES
