"""The harness: results, tracebacks, deadlines, deaths and environments."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from harness import (
    BACKEND,
    Died,
    WorldError,
    await_death,
    await_key,
    context,
    keep,
    run_world,
    tell,
)


def _pid(rank: int, size: int) -> int:
    return os.getpid()


def _exchange(rank: int, size: int, value: int) -> int:
    tensor = torch.tensor([value + rank])
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return int(tensor)


def _fail_on_one(rank: int, size: int) -> None:
    print(f"rank {rank} was here", flush=True)
    if rank == 1:
        await_key("was here")
        raise KeyError("the cause")
    tell("was here")
    time.sleep(30)


def _hang(rank: int, size: int) -> None:
    time.sleep(60)


def _die(rank: int, size: int) -> int:
    if rank == 1:
        tell("dying")
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def _getenv(rank: int, size: int) -> str | None:
    return os.environ.get("HARNESS_VALUE")


def test_results_come_back_in_order_of_rank() -> None:
    assert run_world(_exchange, 2, 40) == [40, 40]


def test_workers_are_reused_from_world_to_world() -> None:
    assert run_world(_pid, 2) == run_world(_pid, 2)


def test_fresh_world_has_new_processes() -> None:
    assert not set(run_world(_pid, 2, fresh=True)) & set(run_world(_pid, 2))


def test_exception_comes_back_with_traceback_and_output() -> None:
    with pytest.raises(WorldError, match="the cause") as caught:
        run_world(_fail_on_one, 2, timeout=20)
    assert "_fail_on_one" in str(caught.value)
    assert "rank 0 was here" in str(caught.value)


def test_hang_ends_at_the_deadline_with_stacks() -> None:
    with pytest.raises(WorldError, match="did not end in time") as caught:
        run_world(_hang, 2, timeout=5, init=False, sync_end=False)
    assert "in _hang" in str(caught.value)


def test_killed_workers_are_replaced() -> None:
    with pytest.raises(WorldError, match="died with exit code -9"):
        run_world(_die, 2, init=False, sync_end=False)
    assert run_world(_exchange, 2, 1) == [1, 1]


def test_rank_that_may_die_is_reported_as_died() -> None:
    survivor, victim = run_world(_die, 2, init=False, may_die=[1])
    assert survivor == 0
    assert isinstance(victim, Died)
    assert victim.exitcode == -signal.SIGKILL


def _see_off(rank: int, size: int) -> None:
    if rank == 1:
        time.sleep(0.5)
        tell("dying")
        os.kill(os.getpid(), signal.SIGKILL)
    await_death(1)
    assert context().control.check(["dying"])


def test_death_of_a_rank_is_waited_for() -> None:
    run_world(_see_off, 2, init=False, may_die=[1])


class _Farewell:
    """Tells of its end."""

    def __init__(self) -> None:
        self.told = context().control  # at the end the context may be another world's

    def __del__(self) -> None:
        self.told.set("gone", "1")


def _leave_first(rank: int, size: int, kept: bool) -> bool:
    if rank == 0:
        farewell = _Farewell()
        if kept:
            keep(farewell)
        return False
    time.sleep(0.5)
    return context().control.check(["gone"])


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
def test_kept_object_outlives_the_functions_of_all_ranks(kept: bool) -> None:
    assert run_world(_leave_first, 2, kept, init=False)[1] is not kept


def test_environments_have_their_own_workers() -> None:
    assert run_world(_getenv, 2) == [None, None]
    assert run_world(_getenv, 2, env={"HARNESS_VALUE": "a"}) == ["a", "a"]
    assert run_world(_getenv, 2, env=[{"HARNESS_VALUE": "a"}, {"HARNESS_VALUE": "b"}]) == ["a", "b"]


def _backend_name(rank: int, size: int) -> str:
    return dist.get_backend()


def test_backend_under_test_is_the_default() -> None:
    assert run_world(_backend_name, 2) == [BACKEND] * 2
