"""Data, sharded and tensor parallel training reach the losses of one process."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from models import Transformer, make_batches, make_transformer, token_loss

STEPS = 3
# Halves of a batch divide by 2, 3 and 4 ranks.
BATCH = 24


def train(model: nn.Module, group: dist.ProcessGroup | None, parts: int, part: int) -> list[float]:
    """Train on a part of each batch; return the loss over the whole batch of each step.

    Args:
        model: the model, wrapped or not.
        group: ranks with the parts of the batch; None if the process has the whole batch.
        parts: number of parts of a batch.
        part: index of the process's part.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens, targets in make_batches(STEPS, BATCH):
        optimizer.zero_grad()
        loss = token_loss(model(tokens.chunk(parts)[part]), targets.chunk(parts)[part])
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        if group is not None:
            dist.all_reduce(whole, dist.ReduceOp.AVG, group=group)
        losses.append(whole.item())
    return losses


def check(losses: list[float]) -> None:
    """Compare with a single process, and assert that training did something."""
    expected = train(make_transformer(), None, 1, 0)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    assert losses[-1] < losses[0]


def ddp() -> None:
    """DistributedDataParallel, small buckets so that several reductions are in flight."""
    model = DistributedDataParallel(make_transformer(), bucket_cap_mb=0.01)
    check(train(model, dist.group.WORLD, dist.get_world_size(), dist.get_rank()))


def ddp_accumulates_without_sync() -> None:
    """no_sync() on one microbatch, reduction on the next: the gradients of the whole batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    plain = make_transformer()
    wrapped = DistributedDataParallel(copy.deepcopy(plain))
    tokens, targets = make_batches(1, BATCH)[0]
    first, second = (
        list(zip(tokens.chunk(2)[half].chunk(world), targets.chunk(2)[half].chunk(world)))[rank]
        for half in range(2)
    )
    with wrapped.no_sync():
        (token_loss(wrapped(first[0]), first[1]) / 2).backward()
    (token_loss(wrapped(second[0]), second[1]) / 2).backward()
    token_loss(plain(tokens), targets).backward()
    for got, expected in zip(wrapped.module.parameters(), plain.parameters()):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-5)


def shard(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Apply FSDP2 to each block, then to the rest."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2() -> None:
    """fully_shard: all-gathers before, reduce-scatters after each block."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = shard(make_transformer(), mesh)
    check(train(model, dist.group.WORLD, world, dist.get_rank()))


def split_by_heads(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Apply Megatron's tensor parallelism to each block."""
    plan = {
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def tensor_parallel() -> None:
    """Every rank sees the whole batch and holds a part of the heads."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    check(train(split_by_heads(make_transformer(), mesh), None, 1, 0))


def fsdp2_with_tensor_parallel() -> None:
    """A two-dimensional mesh: groups of both kinds over the ranks."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "model"))
    model = shard(split_by_heads(make_transformer(), mesh["model"]), mesh["data"])
    data = mesh["data"]
    check(train(model, data.get_group(), data.size(), data.get_local_rank()))


def hsdp() -> None:
    """Sharded within pairs, replicated across pairs."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    check(train(shard(make_transformer(), mesh), dist.group.WORLD, world, dist.get_rank()))


def dtensor() -> None:
    """A sharded matrix product and the redistributions between its layouts."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(12, 10, generator=generator)
    b = torch.randn(10, 8 * world, generator=generator)
    product = distribute_tensor(a, mesh, [Replicate()]) @ distribute_tensor(b, mesh, [Shard(1)])
    assert isinstance(product, DTensor)
    assert product.placements == (Shard(1),)
    # Column shards to row shards is an all-to-all, to replicas an all-gather.
    rows = product.redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(rows.full_tensor(), a @ b)
    torch.testing.assert_close(product.sum().full_tensor(), (a @ b).sum())
