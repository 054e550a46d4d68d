"""Coalesced and functional collectives, as used by DDP, FSDP and DTensor."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from harness import all_routes, dlslime_only, run_world


def _all_reduce_coalesced(rank: int, size: int) -> None:
    tensors = [torch.full((n,), float(rank)) for n in (1, 5, 1000)]
    dist.all_reduce_coalesced(tensors)
    total = size * (size - 1) / 2
    assert all(bool((t == total).all()) for t in tensors)
    pg = dist.group.WORLD
    pg.allreduce_coalesced(tensors).wait()
    assert all(bool((t == total * size).all()) for t in tensors)


def test_all_reduce_coalesced() -> None:
    run_world(_all_reduce_coalesced, 3)


def _gather_coalesced(rank: int, size: int) -> None:
    inputs = [torch.full((n,), float(rank)) for n in (2, 3)]
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, inputs)
    assert [[t.tolist() for t in row] for row in outputs] == [
        [[r] * 2, [r] * 3] for r in range(size)
    ]
    flats = [torch.zeros(2 * size), torch.zeros(3 * size)]
    dist.group.WORLD.allgather_into_tensor_coalesced(flats, inputs).wait()
    for flat, n in zip(flats, (2, 3), strict=True):
        assert flat.tolist() == [r for r in range(size) for _ in range(n)]


def test_all_gather_coalesced_and_into_tensors() -> None:
    run_world(_gather_coalesced, 3)


def _scatter_coalesced(rank: int, size: int) -> None:
    inputs = [torch.arange(n * size, dtype=torch.float32) for n in (2, 3)]
    outputs = [torch.zeros(2), torch.zeros(3)]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    for output, n in zip(outputs, (2, 3), strict=True):
        assert output.tolist() == [size * (rank * n + i) for i in range(n)]


def test_reduce_scatter_tensor_coalesced() -> None:
    run_world(_scatter_coalesced, 2)


def _broadcast_coalesced(rank: int, size: int) -> None:
    tensors = [torch.full((n,), float(rank + n)) for n in (3, 7)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 1 << 20, 1)
    assert [t[0].item() for t in tensors] == [4.0, 8.0]


def test_broadcast_coalesced_of_ddp() -> None:
    run_world(_broadcast_coalesced, 2)


def _coalescing_manager(rank: int, size: int) -> None:
    """The backend has no coalescing of its own, so torch's manager does not call the backend."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert not backend.supports_coalescing
    tensors = [torch.full((4,), float(rank)) for _ in range(3)]
    with dist._coalescing_manager(dist.group.WORLD, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(t[0].item() == size * (size - 1) / 2 for t in tensors)


def test_coalescing_manager_over_all_reduces() -> None:
    run_world(_coalescing_manager, 2)


def _manager_of_a_device(rank: int, size: int) -> None:
    """torch's manager as used by DeepSpeed, also around collectives that torch does not gather."""
    device = torch.device("cpu")
    for async_ops in (True, False):
        tensors = [torch.full((4,), float(rank)) for _ in range(3)]
        with dist._coalescing_manager(device=device, async_ops=async_ops) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_ops:
            manager.wait()
        assert all(t[0].item() == size * (size - 1) / 2 for t in tensors)
    roots = [torch.full((1000,), float(rank)) for _ in range(size)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for root, tensor in enumerate(roots):
            dist.broadcast(tensor, root, async_op=True)
    manager.wait()
    (work,) = manager.works
    assert work.is_completed()
    assert work.is_success()
    assert [t.unique().tolist() for t in roots] == [[r] for r in range(size)]


@dlslime_only
def test_coalescing_manager_of_a_device() -> None:
    run_world(_manager_of_a_device, 2)


def _manager_left_by_an_exception(rank: int, size: int) -> None:
    group, device = dist.group.WORLD, torch.device("cpu")
    assert group is not None
    group._start_coalescing(device)
    for _ in range(200):
        dist.broadcast(torch.ones(3), 0)
    group._start_coalescing(device)
    assert group._end_coalescing(device) is None
    dist.broadcast(torch.ones(3), 0)
    assert group._end_coalescing(device) is None


@dlslime_only
def test_coalescing_begins_anew_after_an_exception() -> None:
    run_world(_manager_left_by_an_exception, 2)


def _sparse(rank: int, size: int) -> None:
    sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 1.0], (4,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0, 1.0, 2.0, 0.0]


def test_all_reduce_of_sparse_tensors() -> None:
    run_world(_sparse, 2)


def _functional(rank: int, size: int) -> None:
    group = dist.group.WORLD
    mine = torch.full((4,), float(rank))
    total = size * (size - 1) / 2
    assert funcol.all_reduce(mine, "sum", group)[0].item() == total
    gathered = funcol.all_gather_tensor(mine, 0, group)
    assert gathered.tolist() == [r for r in range(size) for _ in range(4)]
    scattered = funcol.reduce_scatter_tensor(torch.arange(4.0 * size), "sum", 0, group)
    assert scattered.tolist() == [size * (4 * rank + i) for i in range(4)]
    single = funcol.all_to_all_single(torch.full((size,), float(rank)), None, None, group)
    assert single.tolist() == list(range(size))
    permuted = funcol.permute_tensor(mine, [(r + 1) % size for r in range(size)], group)
    assert permuted[0].item() == (rank - 1) % size
    assert funcol.broadcast(mine, 1, group)[0].item() == 1
    many = funcol.all_reduce_coalesced([mine, mine * 2], "sum", group)
    assert [t[0].item() for t in many] == [total, 2 * total]
    flats = funcol.all_gather_into_tensor_coalesced([mine, mine[:2].clone()], group)
    assert [t.numel() for t in flats] == [4 * size, 2 * size]


@all_routes
def test_functional_collectives(env: dict[str, str]) -> None:
    run_world(_functional, 3, env=env)


def _dtensor(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    a, b = torch.rand(8, 6), torch.rand(6, 4)
    sharded = distribute_tensor(a, mesh, [Shard(0)])
    weight = distribute_tensor(b, mesh, [Replicate()])
    assert torch.allclose((sharded @ weight).full_tensor(), a @ b)
    columns = sharded.redistribute(mesh, [Shard(1)])
    rows = distribute_tensor(b, mesh, [Shard(0)])
    assert torch.allclose((columns @ rows).full_tensor(), a @ b, atol=1e-6)


def test_dtensor_redistributes_and_multiplies() -> None:
    run_world(_dtensor, 2)


def _inside_autograd(rank: int, size: int) -> None:
    import torch.distributed.nn as differentiable

    x = torch.full((3,), float(rank + 1), requires_grad=True)
    # The default argument, bound at the module's import, may be the group of an earlier world.
    y = differentiable.functional.all_reduce(x * 2, group=dist.group.WORLD)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 * size] * 3


def test_collectives_inside_autograd() -> None:
    run_world(_inside_autograd, 2)
