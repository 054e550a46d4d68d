"""Groups split off other groups, merged and shrunk."""

import copy
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _dist2, distributed_c10d

from harness import (
    BACKEND,
    PATIENCE,
    all_routes,
    context,
    dlslime_only,
    run_world,
    sync,
)
from test_dist2 import CPU, GPU, SECONDS, dist2_environment, expect_independent, expect_usable
from test_groups import exchange

# --- split_group ----------------------------------------------------------------------------------
# Gloo splits groups, too, but a run in several hangs on a busy machine.


def _split(rank: int, size: int) -> None:
    world = dist.group.WORLD
    assert world._get_backend(CPU).supports_splitting
    seconds = datetime.timedelta(seconds=17 * PATIENCE)
    group = world.split_group([2, 0], timeout=seconds, group_name="pair")  # torch sorts the ranks
    if rank == 1:
        assert group is None
    else:
        assert (group.rank(), group.group_name) == (rank // 2, "pair")
        assert group._get_backend(CPU).options._timeout == seconds
        expect_usable(group, 2)
    exchange(None, 3)
    dist.barrier()
    sync("used")
    if group is not None:
        group.shutdown()
    exchange(None, 4)


@dlslime_only
@all_routes
def test_group_that_is_split_off_works(env: dict[str, str]) -> None:
    run_world(_split, 3, env=env)


def _split_leaves_the_parent(rank: int, size: int) -> None:
    """torch hands the parent's options object to the child, and changes the object before."""
    world = dist.group.WORLD
    backend = world._get_backend(CPU)
    before = (backend.options._timeout, backend.options.group_name)
    world.split_group(list(range(size)), timeout=datetime.timedelta(seconds=3), group_name="child")
    assert (backend.options._timeout, backend.options.group_name) == before
    backend.options.route = ""  # an option set now still counts for the group itself
    assert backend.options is not None
    exchange(None)
    dist.barrier()


@dlslime_only
def test_split_leaves_the_options_of_the_parent() -> None:
    run_world(_split_leaves_the_parent, 2)


def _split_thrice(rank: int, size: int) -> None:
    """torch gives all three nameless groups an equal name, and so an equal prefix in the store."""
    groups = [dist.group.WORLD.split_group([0, 1], timeout=SECONDS) for _ in range(3)]
    expect_independent(groups)


@dlslime_only
@all_routes
def test_groups_split_off_with_the_same_ranks_are_independent(env: dict[str, str]) -> None:
    run_world(_split_thrice, 2, env=env)


def _split_into_parts(rank: int, size: int) -> None:
    """Each rank names its own part; then a part is split again."""
    mine = [[0, 1], [2]][rank // 2]
    group = dist.group.WORLD.split_group(mine, timeout=SECONDS, group_name=f"part{rank // 2}")
    expect_usable(group, len(mine))
    alone = group.split_group([group.rank()], timeout=SECONDS, group_name=f"alone{rank}")
    expect_usable(alone, 1)


@dlslime_only
def test_disjoint_parts_and_parts_of_parts() -> None:
    run_world(_split_into_parts, 3)


def _split_of_a_subgroup(rank: int, size: int) -> None:
    """Ranks are those of the parent, different from the default group's."""
    parent = dist.new_group([1, 2])
    if rank > 0:
        both = parent.split_group([0, 1], timeout=SECONDS, group_name="both")
        assert both.rank() == rank - 1
        expect_usable(both, 2, 9)
        assert list(both._get_backend(CPU).options.global_ranks_in_group) == [1, 2]


@dlslime_only
def test_split_of_a_subgroup() -> None:
    run_world(_split_of_a_subgroup, 3)


def _split_of_a_dist2_group(rank: int, size: int) -> None:
    """A group without global ranks known to torch is split, as in torch's own test of _dist2."""
    with dist2_environment(rank, size):
        group = _dist2.new_group(BACKEND, timeout=SECONDS, device="cpu")
    alone = group.split_group([0], timeout=SECONDS, group_name="subgroup_1")
    assert (alone is None) == (rank == 1)
    if alone is not None:
        assert (alone.size(), alone.group_name) == (1, "subgroup_1")
        assert alone._get_backend(CPU).options._timeout == SECONDS
    both = group.split_group([0, 1], timeout=SECONDS, group_name="subgroup_2")
    expect_usable(both, 2)
    sync("used")


@dlslime_only  # Gloo reads past the end of a list here
def test_split_of_a_dist2_group() -> None:
    run_world(_split_of_a_dist2_group, 2, init=False)


def _split_with_bad_arguments(rank: int, size: int) -> None:
    world = dist.group.WORLD
    with pytest.raises(ValueError, match="9"):
        world.split_group([0, 1, 9][:size], timeout=SECONDS)
    for timeout in (datetime.timedelta(0), datetime.timedelta(seconds=-1), datetime.timedelta.max):
        with pytest.raises(ValueError, match="(?i)time-?out"):
            world.split_group([0, 1], timeout=timeout)
    exchange(None)
    expect_usable(world.split_group([0, 1, 2], timeout=SECONDS), 3)


@dlslime_only
def test_split_refuses_bad_ranks_and_timeouts() -> None:
    run_world(_split_with_bad_arguments, 3)


@contextmanager
def _bound_to_an_accelerator() -> Iterator[None]:
    """Satisfy the requirements of dist.split_group on a machine without an accelerator."""
    world = dist.group.WORLD
    world.bound_device_id = GPU
    with (
        mock.patch.object(torch.accelerator, "is_available", return_value=True),
        mock.patch.object(torch.accelerator, "current_accelerator", return_value=CPU),
    ):
        yield
    world.bound_device_id = None


def _split_group(rank: int, size: int) -> None:
    with _bound_to_an_accelerator():
        group = dist.split_group(split_ranks=[[0, 2], [1]], timeout=SECONDS, group_desc="half")
        assert dist.split_group(split_ranks=[[0]], timeout=SECONDS) is None or rank == 0
    ranks = [[0, 2], [1], [0, 2]][rank]
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.get_backend(group) == "dlslime"
    group.bound_device_id = None
    exchange(group)
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [len(ranks)] * 2
    sync("used")
    dist.destroy_process_group(group)
    exchange(None)


@dlslime_only  # options of Gloo can't be copied, and so not be handed on
def test_split_group_by_torchs_own_function() -> None:
    run_world(_split_group, 3)


def _new_group_of_a_bound_world(rank: int, size: int) -> None:
    """torch before 2.14 informs ranks outside of a new group if the backend can split groups."""
    with _bound_to_an_accelerator():
        group = dist.new_group([0, 1])
    if rank < 2:
        exchange(group)
    exchange(None)


@dlslime_only
def test_new_group_of_some_ranks_in_a_world_bound_to_a_device() -> None:
    run_world(_new_group_of_a_bound_world, 3)


def _options_may_be_copied(rank: int, size: int) -> None:
    options = dist.group.WORLD._get_backend(CPU).options
    options.route = "shm"
    for twin in (copy.copy(options), copy.deepcopy(options)):
        assert twin is not options
        assert (twin.route, twin._timeout) == ("shm", options._timeout)
    expect_usable(dist.group.WORLD.split_group([0, 1], opts=copy.deepcopy(options)), 2)


@dlslime_only
def test_split_takes_copied_options() -> None:
    run_world(_options_may_be_copied, 2)


# --- merging, and shrinking -----------------------------------------------------------------------


def _merge(rank: int, size: int) -> None:
    world = dist.group.WORLD
    alone = [world.split_group([r], timeout=SECONDS, group_name=f"one{r}") for r in range(size)]
    store = dist.PrefixStore("merge", context().store)
    merged = alone[rank].merge_remote_group(store, size, SECONDS, "merged")
    assert merged.group_name == "merged"
    assert merged._get_backend(CPU).options._timeout == SECONDS
    expect_usable(merged, size)
    expect_usable(alone[rank], 1)
    exchange(None)


@dlslime_only
@all_routes
def test_groups_are_merged_by_a_store(env: dict[str, str]) -> None:
    run_world(_merge, 2, env=env)


def _shrink_is_refused(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    assert not backend.supports_shrinking
    if rank < 2:
        with pytest.raises(TypeError, match="does not support shrinking"):
            distributed_c10d.shrink_group([2])
    exchange(None)
    dist.barrier()


# Gloo refuses to shrink, too.
def test_shrink_that_is_not_supported_harms_nothing() -> None:
    run_world(_shrink_is_refused, 3)
