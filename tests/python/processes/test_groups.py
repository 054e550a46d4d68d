"""Groups: several over equal ranks, over some ranks, beside other backends, by the dozen."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from harness import BACKEND, all_routes, dlslime_only, run_world, sync
from patterns import blank, expect_pattern, pattern

CPU = torch.device("cpu")


def exchange(group: dist.ProcessGroup | None, seed: int = 0, nbytes: int = 1000) -> None:
    """Exchange a message with every other rank of `group`."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    rank = dist.get_rank()
    received = {r: blank(nbytes) for r in ranks if r != rank}
    works = [dist.irecv(t, r, group=group) for r, t in received.items()]
    works += [dist.isend(pattern(nbytes, rank + seed), r, group=group) for r in received]
    for work in works:
        work.wait()
    for r, tensor in received.items():
        expect_pattern(tensor, r + seed, f"from {r}")


def _independent_streams(rank: int, size: int) -> None:
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group([1, 0]), dist.new_group()]
    if rank == 0:
        works = [
            dist.isend(pattern(n, 10 * g + i), 1, group=group)
            for i, n in enumerate((8, 100_000, 0, 30))
            for g, group in enumerate(groups)
        ]
        for work in works:
            work.wait()
    else:
        for g, group in reversed(list(enumerate(groups))):
            for i, n in enumerate((8, 100_000, 0, 30)):
                received = blank(n)
                assert dist.recv(received, 0, group=group) == 0
                expect_pattern(received, 10 * g + i, f"group {g} message {i}")


@all_routes
def test_groups_over_the_same_ranks_are_independent_streams(env: dict[str, str]) -> None:
    run_world(_independent_streams, 2, env=env)


def _any_source_stays_in_its_group(rank: int, size: int) -> None:
    group = dist.new_group()
    if rank == 0:
        in_group, in_world = blank(50), blank(50)
        first, second = dist.irecv(in_group, group=group), dist.irecv(in_world)
        sync("posted")
        second.wait()
        expect_pattern(in_world, 1)
        sync("world first")
        first.wait()
        expect_pattern(in_group, 2)
    else:
        sync("posted")
        dist.send(pattern(50, 1), 0)
        sync("world first")
        dist.send(pattern(50, 2), 0, group=group)


@all_routes
def test_any_source_receive_sees_only_its_group(env: dict[str, str]) -> None:
    run_world(_any_source_stays_in_its_group, 2, env=env)


def _connections() -> int:
    import dlslime_backend

    return dlslime_backend.stats()["process"]["connections"]


def _shared_connections(rank: int, size: int) -> None:
    exchange(None)
    sync("connected")
    before = _connections()
    assert before == size - 1
    for i in range(5):
        exchange(dist.new_group(list(range(size))), i)
        exchange(dist.new_group([0, 1]), i) if rank < 2 else dist.new_group([0, 1])
    sync("groups used")
    assert _connections() == before


@dlslime_only
@pytest.mark.parametrize("size", [2, 4])
def test_groups_share_the_connections_of_their_processes(size: int) -> None:
    run_world(_shared_connections, size, fresh=True)


def _counts() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _settled_counts(most: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the counts once the wire-up has closed its own connection to the store."""
    deadline = time.monotonic() + 5
    counts = _counts()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        again = _counts()
        if again == counts and (most is None or _within(again, most)):
            break
        counts = again
    return counts


def _within(counts: tuple[int, int], most: tuple[int, int]) -> bool:
    return all(count <= limit for count, limit in zip(counts, most, strict=True))


def _thirty_groups(rank: int, size: int) -> None:
    exchange(dist.new_group())
    sync("warm")
    before = _settled_counts()
    groups = [dist.new_group() for _ in range(30)]
    for i, group in enumerate(groups):
        exchange(group, i)
    sync("used")
    used = _settled_counts(before)
    assert _within(used, before), f"{used} descriptors and threads, {before} before"
    for group in groups:
        dist.destroy_process_group(group)
    sync("destroyed")
    left = _settled_counts(before)
    assert _within(left, before), f"{left} descriptors and threads, {before} before"
    exchange(None)


@dlslime_only
@all_routes
def test_thirty_groups_take_no_descriptors_and_no_threads(env: dict[str, str]) -> None:
    run_world(_thirty_groups, 2, env=env, fresh=True)


def _others_never_join(rank: int, size: int) -> None:
    """Ranks 1 and 3 use the group; ranks 0 and 2 only call new_group."""
    group = dist.new_group([1, 2, 3])
    if rank in (1, 3):
        other = 4 - rank
        received = blank(300_000)
        work = dist.isend(pattern(300_000, rank), other, group=group)
        assert dist.recv(received, other, group=group) == other
        work.wait()
        expect_pattern(received, other)


@all_routes
def test_pair_of_a_group_talks_while_others_never_join(env: dict[str, str]) -> None:
    run_world(_others_never_join, 4, env=env)


def _only_members_call(rank: int, size: int) -> None:
    if rank in (0, 2):
        exchange(dist.new_group([0, 2], use_local_synchronization=True), 3)


@all_routes
def test_group_made_by_its_members_alone(env: dict[str, str]) -> None:
    run_world(_only_members_call, 3, env=env)


def _overlapping_subsets(rank: int, size: int) -> None:
    subsets = [[0, 1], [1, 2], [2, 3], [0, 3], [0, 1, 2], [3, 1], [2, 0, 3, 1]]
    groups = [dist.new_group(ranks) for ranks in subsets]
    for seed, (ranks, group) in enumerate(zip(subsets, groups, strict=True)):
        if rank in ranks:
            exchange(group, seed)


@all_routes
def test_overlapping_subsets_of_a_world(env: dict[str, str]) -> None:
    run_world(_overlapping_subsets, 4, env=env)


def _permuted_ranks(rank: int, size: int) -> None:
    order = [2, 0, 1]
    group = dist.new_group(order, sort_ranks=False)
    mine = order.index(rank)
    assert dist.get_rank(group) == mine
    following, previous = order[(mine + 1) % 3], order[(mine - 1) % 3]
    work = dist.isend(pattern(10, rank), following, group=group)
    received = blank(10)
    assert dist.recv(received, previous, group=group) == previous
    work.wait()
    expect_pattern(received, previous)
    assert dist.get_global_rank(group, (mine + 1) % 3) == following


@all_routes
def test_group_with_its_ranks_in_another_order(env: dict[str, str]) -> None:
    run_world(_permuted_ranks, 3, env=env)


def _inside_another_job(rank: int, size: int, inner: str) -> None:
    exchange(None, 1)
    group = dist.new_group(backend=inner)
    exchange(group, 2)
    exchange(None, 3)
    pair = dist.new_group([1, 0], backend=inner)
    if rank < 2:
        exchange(pair, 4)
    tensor = torch.ones(3) * rank
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size * (size - 1) / 2] * 3
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_new_group_inside_a_gloo_job(size: int) -> None:
    run_world(_inside_another_job, size, BACKEND, backend="gloo")


@pytest.mark.parametrize("size", [2, 3])
def test_gloo_twin_group_inside_a_job(size: int) -> None:
    run_world(_inside_another_job, size, "gloo")


def _composite(rank: int, size: int) -> None:
    exchange(None, 1)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 2
    exchange(dist.new_group(), 2)
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    dist.barrier()


@pytest.mark.parametrize(
    "name",
    [
        f"cpu:{BACKEND}",
        f"cpu:{BACKEND},cuda:{BACKEND}",
        f"cpu:{BACKEND},cuda:gloo",
        f"cpu:gloo,cuda:{BACKEND}",
        BACKEND.upper(),
    ],
)
def test_backend_strings_with_devices_and_upper_case(name: str) -> None:
    run_world(_composite, 2, backend=name)


def _mesh(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    for name in ("dp", "pp"):
        group = mesh.get_group(name)
        assert dist.get_world_size(group) == 2
        exchange(group, 5)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(dist.get_process_group_ranks(group))
    exchange(mesh["pp"].get_group(), 6)


@all_routes
def test_groups_of_a_device_mesh(env: dict[str, str]) -> None:
    run_world(_mesh, 4, env=env)


def _names(rank: int, size: int) -> None:
    assert dist.is_backend_available("dlslime")
    assert dist.get_backend() == "dlslime"
    assert dist.get_backend(dist.new_group()) == "dlslime"
    assert dist.Backend("DLSLIME") == "dlslime"
    assert dist.group.WORLD._get_backend(CPU).name() == "dlslime"


@dlslime_only
def test_names_by_which_torch_knows_the_backend() -> None:
    run_world(_names, 2)


def _late_by_a_second(rank: int, size: int) -> None:
    """One rank of the pair first uses the group much later than the other."""
    group = dist.new_group()
    if rank == 0:
        work = dist.isend(pattern(500_000, 1), 1, group=group)
        sync("posted")
        work.wait()
    else:
        sync("posted")
        received = blank(500_000)
        dist.recv(received, 0, group=group)
        expect_pattern(received, 1)


@all_routes
def test_first_use_of_a_group_by_one_side_long_before_the_other(env: dict[str, str]) -> None:
    run_world(_late_by_a_second, 2, env=env, fresh=True)
