"""Checkpoints of sharded and plain state, by torch, at once and in the background."""

from __future__ import annotations

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from models import make_batches, make_transformer, token_loss

BATCH = 12


def shared_folder() -> str:
    """Make a new folder, and return the name to all ranks; the ranks share a file system."""
    name = [tempfile.mkdtemp(prefix="checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name)
    return str(name[0])


def make_sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return an FSDP2 model over all ranks, and the model's optimizer."""
    model = make_transformer()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Take a step on the rank's part of a batch."""
    tokens, targets = make_batches(step + 1, BATCH)[step]
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer.zero_grad()
    token_loss(model(tokens.chunk(world)[rank]), targets.chunk(world)[rank]).backward()
    optimizer.step()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Return model and optimizer state in the format of a checkpoint."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def local_copy(model: nn.Module) -> list[torch.Tensor]:
    """Copy the rank's shards."""
    shards = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return [shard.detach().clone() for shard in shards]


def restore_and_compare(folder: str, saved: list[torch.Tensor], after_a_step: list) -> None:
    """Load into a model in another state; weights and next step must equal the saved ones."""
    model, optimizer = make_sharded()
    train_step(model, optimizer, step=2)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    torch.testing.assert_close(local_copy(model), saved, rtol=0, atol=0)
    train_step(model, optimizer, step=1)
    torch.testing.assert_close(local_copy(model), after_a_step)


def save_and_load() -> None:
    """Training goes on from a checkpoint as if never interrupted."""
    model, optimizer = make_sharded()
    train_step(model, optimizer, step=0)
    saved = local_copy(model)
    folder = shared_folder()
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    train_step(model, optimizer, step=1)
    restore_and_compare(folder, saved, local_copy(model))


def async_save() -> None:
    """A checkpoint is written by another thread, on its own group, while training goes on."""
    model, optimizer = make_sharded()
    train_step(model, optimizer, step=0)
    saved = local_copy(model)
    folder = shared_folder()
    background = dist.new_group()
    future = dcp.async_save(
        state_of(model, optimizer), checkpoint_id=folder, process_group=background
    )
    train_step(model, optimizer, step=1)
    after_a_step = local_copy(model)
    for step in range(2, 6):
        train_step(model, optimizer, step)
    future.result()
    restore_and_compare(folder, saved, after_a_step)


def plain_state() -> None:
    """Replicated tensors and Python objects; every rank gets back the saved values."""
    state = {"weights": torch.arange(1000.0), "step": 17, "nested": {"names": ["a", "b"]}}
    folder = shared_folder()
    dcp.save(copy.deepcopy(state), checkpoint_id=folder)
    loaded = {"weights": torch.zeros(1000), "step": 0, "nested": {"names": ["", ""]}}
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded.pop("weights"), state.pop("weights"))
    assert loaded == state
