"""Message sizes and places in memory: nothing, one byte, around every limit, beyond 2 GiB."""

import itertools

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, dlslime_only, run_world
from patterns import blank, expect, expect_pattern, pattern

# Around every power of two at which a transport may change its way, and around the 4 KiB page.
EDGES = [0, *(n + d for n in (1, 64, 256, 4096, 8192, 16384, 32768, 65536) for d in (-1, 0, 1))]
LARGE = [(1 << 20) + 1, (1 << 22) - 1, (5 << 20) + 12345]


def _exchange_sizes(rank: int, size: int, sizes: list[int]) -> None:
    for i, nbytes in enumerate(sizes):
        if rank == 0:
            dist.send(pattern(nbytes, i), 1)
        else:
            received = blank(nbytes)
            dist.recv(received, 0)
            expect_pattern(received, i, f"{nbytes} bytes")


@all_routes
def test_every_size_around_the_limits_arrives(env: dict[str, str]) -> None:
    run_world(_exchange_sizes, 2, EDGES + LARGE, env=env)


def _sizes_in_flight(rank: int, size: int, sizes: list[int]) -> None:
    if rank == 0:
        works = [dist.isend(pattern(n, i), 1) for i, n in enumerate(sizes)]
    else:
        received = [blank(n) for n in sizes]
        works = [dist.irecv(r, 0) for r in received]
    for work in works:
        work.wait()
    if rank == 1:
        for i, tensor in enumerate(received):
            expect_pattern(tensor, i, f"{sizes[i]} bytes")


@all_routes
def test_every_size_arrives_with_all_in_flight(env: dict[str, str]) -> None:
    sizes = [n for pair in zip(EDGES, reversed(EDGES), strict=True) for n in pair] + LARGE
    run_world(_sizes_in_flight, 2, sizes, env=env)


@dlslime_only
@pytest.mark.parametrize("limit", [0, 1, 100, 65536])
def test_every_size_arrives_whatever_the_eager_limit(limit: int) -> None:
    env = {"DLSLIME_EAGER_LIMIT": str(limit)}
    run_world(_sizes_in_flight, 2, [*EDGES, 99, 100, 101, 200_000], env=env, fresh=True)


def _guarded_offsets(rank: int, size: int) -> None:
    """Every combination of odd addresses at both ends; the bytes around must stay unchanged."""
    offsets, lengths = [0, 1, 3, 7, 8, 13], [1, 5, 4095, 16385, 100_003]
    for i, (here, there, n) in enumerate(itertools.product(offsets, offsets, lengths)):
        if rank == 0:
            frame = pattern(n + 32, i)
            dist.send(frame[here : here + n], 1)
        else:
            frame = blank(n + 32)
            dist.recv(frame[there : there + n], 0)
            expect(frame[there : there + n], pattern(n + 32, i)[here : here + n])
            expect(frame[:there], blank(there), "before the message")
            expect(frame[there + n :], blank(32 - there), "after the message")


@all_routes
def test_odd_addresses_and_neighbours_stay_whole(env: dict[str, str]) -> None:
    run_world(_guarded_offsets, 2, env=env)


def _storage_offsets(rank: int, size: int) -> None:
    rows = torch.arange(6 * 1000, dtype=torch.float32).reshape(6, 1000)
    if rank == 0:
        for i in range(6):
            dist.send(rows[i], 1)
        dist.send(rows[2:5], 1)
    else:
        received = torch.zeros(7, 1000)
        for i in reversed(range(6)):
            dist.recv(received[i], 0)
        expect(received[:6], rows.flip(0))
        dist.recv(received[4:7], 0)
        expect(received[4:7], rows[2:5])
        expect(received[:4], rows.flip(0)[:4])


@all_routes
def test_views_with_storage_offsets(env: dict[str, str]) -> None:
    run_world(_storage_offsets, 2, env=env)


def _shapes(rank: int, size: int) -> None:
    shapes = [(), (1,), (2, 3), (2, 1, 4), (3, 0, 5), (0,), (1, 1, 1, 1, 7)]
    for i, shape in enumerate(shapes):
        sent = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) + i
        if rank == 0:
            dist.send(sent, 1)
        else:
            received = torch.full(shape, -1.0, dtype=torch.float64)
            dist.recv(received, 0)
            expect(received, sent, shape)


@all_routes
def test_shapes_of_any_rank_zero_dimensions_included(env: dict[str, str]) -> None:
    run_world(_shapes, 2, env=env)


def _scalar_into_vector(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(torch.tensor(7.5), 1)
        dist.send(torch.tensor([8.5]), 1)
    else:
        vector, scalar = torch.zeros(1), torch.zeros(())
        dist.recv(vector, 0)
        dist.recv(scalar, 0)
        assert vector.tolist() == [7.5]
        assert scalar.item() == 8.5


@all_routes
def test_scalar_arrives_in_a_vector_of_one_and_back(env: dict[str, str]) -> None:
    run_world(_scalar_into_vector, 2, env=env)


def _zero_sizes_in_order(rank: int, size: int) -> None:
    sizes = [0, 8, 0, 0, 100_000, 0, 1, 0]
    if rank == 0:
        works = [dist.isend(pattern(n, i), 1) for i, n in enumerate(sizes)]
    else:
        received = [blank(n) for n in sizes]
        works = [dist.irecv(t, 0) for t in received]
    for work in works:
        work.wait()
    if rank == 1:
        for i, tensor in enumerate(received):
            expect_pattern(tensor, i)


@all_routes
def test_zero_size_messages_take_their_place_in_the_order(env: dict[str, str]) -> None:
    run_world(_zero_sizes_in_order, 2, env=env)


def _zero_into_larger(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(torch.empty(0), 1)
        dist.send(torch.ones(3), 1)
    else:
        # As in pipelining's first exchange of a stage: no bytes for a tensor of one element.
        untouched, received = torch.full((1,), 4.0), torch.zeros(3)
        dist.recv(untouched, 0)
        dist.recv(received, 0)
        assert untouched.tolist() == [4.0]
        assert received.tolist() == [1.0] * 3


@all_routes
def test_nothing_sent_into_a_tensor_of_one_leaves_it(env: dict[str, str]) -> None:
    run_world(_zero_into_larger, 2, env=env)


def _available_gib() -> float:
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / (1 << 20)
    return 0.0


HUGE = (2 << 30) + 5


def _huge(rank: int, size: int) -> None:
    # Zeros except at three places: making 2 GiB of pattern would take longer than sending.
    places = [0, HUGE // 2 - 7, HUGE - 4096]
    tensor = torch.zeros(HUGE, dtype=torch.uint8)
    if rank == 0:
        for i, place in enumerate(places):
            tensor[place : place + 4096] = pattern(4096, i)
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
        for i, place in enumerate(places):
            expect_pattern(tensor[place : place + 4096], i, f"at {place}")
            tensor[place : place + 4096] = 0
        assert not tensor.view(-1)[: HUGE // 8 * 8].view(torch.int64).any()
        assert not tensor[HUGE // 8 * 8 :].any()


@dlslime_only
@pytest.mark.skipif(
    _available_gib() < 6,
    reason=f"two tensors of 2 GiB need 6 GiB of free memory, {_available_gib():.1f} are free",
)
def test_message_beyond_two_gib_arrives_whole() -> None:
    run_world(_huge, 2, fresh=True, timeout=120, group_timeout=100)
