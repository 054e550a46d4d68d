"""fork after init: the parent's connections stay whole, the child is refused clearly."""

import os
import signal
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import dlslime_backend
from harness import all_routes, dlslime_only, run_world, sync
from patterns import blank, expect_pattern, pattern
from test_groups import exchange

pytestmark = dlslime_only


def fork_and_run(function, *args) -> int:
    """Run `function` in a forked child; return the child's exit code (0 if `function` returned)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads is the subject
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(20)
            function(*args)
            code = 0
        except BaseException:  # noqa: BLE001  the child may only leave by os._exit
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _refused_in_child(rank: int) -> None:
    other = 1 - rank
    for operation in (
        lambda: dist.isend(torch.ones(3), other),
        lambda: dist.irecv(torch.ones(3), other),
        lambda: dist.irecv(torch.ones(3)),
        lambda: dist.isend(torch.ones(100_000), other),
        lambda: dist.isend(torch.ones(3), rank),
        dist.barrier,
        dlslime_backend.stats,
        lambda: dlslime_backend.explain(other),
        dlslime_backend.Endpoint,
    ):
        with pytest.raises(dist.DistBackendError, match="fork"):
            operation()


def _child_is_refused(rank: int, size: int) -> None:
    exchange(None, 1)
    assert fork_and_run(_refused_in_child, rank) == 0
    exchange(None, 2, 500_000)
    sync("again")
    exchange(dist.new_group(), 3)


@all_routes
def test_child_is_refused_and_parent_goes_on(env: dict[str, str]) -> None:
    run_world(_child_is_refused, 2, env=env, fresh=True)


def _child_before_first_message(rank: int, size: int) -> None:
    """A fork after init, but before any connection is made."""
    assert fork_and_run(_refused_in_child, rank) == 0
    exchange(None, 2)


@all_routes
def test_fork_before_the_first_message(env: dict[str, str]) -> None:
    run_world(_child_before_first_message, 2, env=env, fresh=True)


def _child_exits_normally(rank: int, size: int) -> None:
    """A child that destroys the group, drops works and runs its destructors."""
    other = 1 - rank
    received, unmatched = blank(300_000), blank(8)
    receive = dist.irecv(received, other)
    pending = dist.irecv(unmatched, other, tag=77)

    def leave() -> None:
        nonlocal receive, pending
        receive = pending = None
        dist.destroy_process_group()

    sync("posted")
    assert fork_and_run(leave) == 0
    sync("children gone")
    work = dist.isend(pattern(300_000, rank), other)
    receive.wait()
    work.wait()
    expect_pattern(received, other)
    dist.send(pattern(8, rank), other, tag=77)
    pending.wait()
    expect_pattern(unmatched, other)


@all_routes
def test_child_that_destroys_its_copy_harms_nothing(env: dict[str, str]) -> None:
    run_world(_child_exits_normally, 2, env=env, fresh=True)


def _wait_in_child(rank: int, size: int) -> None:
    work = dist.irecv(blank(100), 1 - rank)

    def wait() -> None:
        for use in (work.wait, work.is_completed):
            with pytest.raises(dist.DistBackendError, match="fork"):
                use()

    assert fork_and_run(wait) == 0
    sync("children gone")
    dist.send(pattern(100, rank), 1 - rank)
    work.wait()


@all_routes
def test_work_of_the_parent_is_refused_in_the_child(env: dict[str, str]) -> None:
    run_world(_wait_in_child, 2, env=env, fresh=True)


class Squares(Dataset):
    """Items made in the loader's worker processes."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index * index])


def _data_loader(rank: int, size: int) -> None:
    exchange(None, 1)
    total = 0
    for i, batch in enumerate(DataLoader(Squares(), batch_size=8, num_workers=2)):
        exchange(None, i, 70_000)
        total += int(batch.sum())
    assert total == sum(i * i for i in range(32))
    exchange(None, 9)
    dist.barrier()


@all_routes
def test_data_loader_workers_during_traffic(env: dict[str, str]) -> None:
    run_world(_data_loader, 2, env=env, fresh=True)


def _fork_in_transfer(rank: int, size: int) -> None:
    """Large messages under way while the process forks: copy-on-write must not divert bytes."""
    other, nbytes = 1 - rank, 16 << 20
    for i in range(5):
        received = blank(nbytes)
        works = [dist.irecv(received, other), dist.isend(pattern(nbytes, i + rank), other)]
        assert fork_and_run(lambda: None) == 0
        received.view(-1)[:1].clone()
        for work in works:
            work.wait()
        expect_pattern(received, i + other)


@all_routes
def test_fork_in_the_middle_of_a_transfer(env: dict[str, str]) -> None:
    run_world(_fork_in_transfer, 2, env=env, fresh=True)


def _new_group_in_child(rank: int, size: int) -> None:
    """A child may leave the inherited group behind and make a new group."""
    exchange(None, 1)

    def life_of_its_own() -> None:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 1
        dist.destroy_process_group()

    assert fork_and_run(life_of_its_own) == 0
    exchange(None, 2)


def test_child_may_make_a_gloo_group_of_its_own() -> None:
    run_world(_new_group_in_child, 2, fresh=True)
