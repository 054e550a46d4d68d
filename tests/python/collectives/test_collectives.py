"""All collectives, which Gloo carries, in several dtypes and with several operations."""

import datetime
import os
import socket

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, dlslime_only, run_world
from polling import eventually
from test_groups import exchange

OPS = ["SUM", "AVG", "MAX", "MIN", "PRODUCT"]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]


def _value(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(6) % 3 + rank + 1).to(dtype)


def _reduced(op: str, size: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.stack([_value(r, dtype).to(torch.float64) for r in range(size)])
    result = {
        "SUM": values.sum(0),
        "AVG": values.mean(0),
        "MAX": values.amax(0),
        "MIN": values.amin(0),
        "PRODUCT": values.prod(0),
    }[op]
    return result.to(dtype)


def _all_reduce(rank: int, size: int, op: str) -> None:
    for name in DTYPES:
        dtype = getattr(torch, name)
        if op == "AVG" and not dtype.is_floating_point:
            continue
        tensor = _value(rank, dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert torch.allclose(tensor.double(), _reduced(op, size, dtype).double(), 1e-2), name


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce(size: int, op: str) -> None:
    run_world(_all_reduce, size, op)


def _rooted(rank: int, size: int) -> None:
    for root in range(size):
        tensor = torch.full((5,), float(rank))
        dist.broadcast(tensor, root)
        assert tensor.tolist() == [root] * 5
        tensor = torch.full((5,), float(rank + 1))
        dist.reduce(tensor, root)
        if rank == root:
            assert tensor.tolist() == [size * (size + 1) / 2] * 5
        gathered = [torch.zeros(2) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2,), float(rank)), gathered, root)
        if gathered is not None:
            assert [t.tolist() for t in gathered] == [[r, r] for r in range(size)]
        parts = [torch.full((2,), 10.0 * root + r) for r in range(size)]
        received = torch.zeros(2)
        dist.scatter(received, parts if rank == root else None, root)
        assert received.tolist() == [10 * root + rank] * 2


@all_routes
@pytest.mark.parametrize("size", [2, 3, 4])
def test_broadcast_reduce_gather_scatter(env: dict[str, str], size: int) -> None:
    run_world(_rooted, size, env=env)


def _gathering(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8):
        mine = (torch.arange(3) + rank).to(dtype)
        expected = torch.cat([(torch.arange(3) + r).to(dtype) for r in range(size)])
        tensors = [torch.zeros(3, dtype=dtype) for _ in range(size)]
        dist.all_gather(tensors, mine)
        assert torch.equal(torch.cat(tensors), expected)
        flat = torch.zeros(3 * size, dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        assert torch.equal(flat, expected)


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_and_into_tensor(size: int) -> None:
    run_world(_gathering, size)


def _reduce_scatters(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        inputs = [torch.full((4,), 10 * part + rank, dtype=dtype) for part in range(size)]
        expected = [size * 10 * rank + size * (size - 1) // 2] * 4
        output = torch.zeros(4, dtype=dtype)
        dist.reduce_scatter(output, inputs)
        assert output.tolist() == expected
        output.zero_()
        dist.reduce_scatter_tensor(output, torch.cat(inputs))
        assert output.tolist() == expected


@pytest.mark.parametrize("size", [2, 3])
def test_reduce_scatter_and_tensor(size: int) -> None:
    run_world(_reduce_scatters, size)


def _all_to_alls(rank: int, size: int) -> None:
    inputs = [torch.tensor([10.0 * rank + r]) for r in range(size)]
    outputs = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    assert [int(t) for t in outputs] == [10 * r + rank for r in range(size)]
    single = torch.zeros(size)
    dist.all_to_all_single(single, torch.cat(inputs))
    assert single.tolist() == [10 * r + rank for r in range(size)]
    # Uneven: rank r sends r + p elements to rank p.
    sends = [rank + r for r in range(size)]
    uneven = torch.zeros(sum(sends))
    source = torch.full((sum(sends),), float(rank))
    dist.all_to_all_single(uneven, source, sends, sends)
    assert uneven.tolist() == [r for r in range(size) for _ in range(rank + r)]
    # A single split that is not zero: a permutation, as in ring attention.
    following = [4 if r == (rank + 1) % size else 0 for r in range(size)]
    previous = [4 if r == (rank - 1) % size else 0 for r in range(size)]
    permuted = torch.zeros(4)
    dist.all_to_all_single(permuted, torch.full((4,), float(rank)), previous, following)
    assert permuted.tolist() == [(rank - 1) % size] * 4


@pytest.mark.parametrize("size", [2, 3])
def test_all_to_all_even_uneven_and_with_zero_splits(size: int) -> None:
    run_world(_all_to_alls, size)


def _barriers(rank: int, size: int) -> None:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=20), True)
    dist.group.WORLD.barrier().wait()
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.barrier(group)


@all_routes
@pytest.mark.parametrize("size", [2, 3])
def test_barriers(env: dict[str, str], size: int) -> None:
    run_world(_barriers, size, env=env)


def _async_works(rank: int, size: int) -> None:
    tensors = [torch.full((1000,), float(rank + i)) for i in range(10)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert work.is_completed()
        assert tensor[0].item() == sum(r + i for r in range(size))
    work = dist.all_reduce(tensors[0], async_op=True)
    value = work.get_future().wait()
    assert torch.equal(value[0], tensors[0])


def test_async_collectives_and_their_futures() -> None:
    run_world(_async_works, 3)


def _mixed_with_p2p(rank: int, size: int) -> None:
    for i in range(20):
        exchange(None, i, 3000)
        tensor = torch.ones(100)
        work = dist.all_reduce(tensor, async_op=True)
        exchange(None, i + 1, 40_000)
        work.wait()
        assert tensor[0].item() == size
        dist.barrier()


@all_routes
def test_collectives_between_sends_and_receives(env: dict[str, str]) -> None:
    run_world(_mixed_with_p2p, 3, env=env)


def _objects(rank: int, size: int) -> None:
    mine = {"rank": rank, "list": list(range(rank * 100))}
    everyone = [{"rank": r, "list": list(range(r * 100))} for r in range(size)]
    gathered: list = [None] * size
    dist.all_gather_object(gathered, mine)
    assert gathered == everyone
    at_root: list | None = [None] * size if rank == 1 else None
    dist.gather_object(mine, at_root, dst=1)
    assert at_root is None or at_root == everyone
    shared = [mine, "b", None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(shared, src=0)
    assert shared == [everyone[0], "b", None]
    scattered: list = [None]
    dist.scatter_object_list(scattered, everyone if rank == 0 else None, src=0)
    assert scattered == [mine]


@all_routes
@pytest.mark.parametrize("size", [2, 3])
def test_object_collectives(env: dict[str, str], size: int) -> None:
    run_world(_objects, size, env=env)


def _subgroup_collectives(rank: int, size: int) -> None:
    group = dist.new_group([1, 3])
    if rank in (1, 3):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 4
        dist.broadcast(tensor, src=3, group=group)
    dist.barrier()


@all_routes
def test_collectives_of_a_subgroup(env: dict[str, str]) -> None:
    run_world(_subgroup_collectives, 4, env=env)


def _timeout_of_collective(rank: int, size: int) -> None:
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1))


def test_collective_that_no_peer_joins_times_out() -> None:
    run_world(_timeout_of_collective, 2, group_timeout=1.5, fresh=True)


def _sequence_numbers(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.barrier()
    before = backend._get_sequence_number_for_group()
    exchange(None)
    assert backend._get_sequence_number_for_group() == before
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2


@dlslime_only
def test_sequence_number_counts_collectives_and_not_messages() -> None:
    run_world(_sequence_numbers, 2)


def _sockets() -> tuple[int, int]:
    """Return the number of the process's sockets, and of listening sockets."""
    count = listening = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                count += 1
                with socket.socket(fileno=os.dup(int(fd))) as copy:
                    listening += copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError:  # closed meanwhile
            continue
    return count, listening


def _lazy(rank: int, size: int) -> None:
    before, listeners = _sockets()
    groups = [dist.new_group() for _ in range(10)]
    for group in groups:
        exchange(group)
    # One control connection at most for all ten groups, once crossed handshakes are over.
    eventually(lambda: _sockets()[0] - before <= 1)
    _, still = _sockets()
    assert still == listeners
    dist.all_reduce(torch.ones(1), group=groups[0])
    assert _sockets()[1] == listeners + 1, "the first collective made Gloo's listener"


@dlslime_only
def test_collectives_connect_at_their_first_use_only() -> None:
    run_world(_lazy, 2, fresh=True)
