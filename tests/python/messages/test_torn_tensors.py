"""Tensors with other memory than their shape says: refused at the call without any loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import dlslime_only, run_world
from test_groups import exchange

pytestmark = dlslime_only


def _users(tensor: torch.Tensor, peer: int) -> list[Callable[[], object]]:
    return [
        lambda: dist.send(tensor, peer),
        lambda: dist.recv(tensor, peer),
        lambda: dlslime_backend.peer(peer).send(tensor),
        lambda: dlslime_backend.peer(peer).recv(tensor),
        lambda: dlslime_backend.register(tensor),
    ]


def _resized(rank: int, size: int) -> None:
    whole, part = torch.ones(1000), torch.ones(1000)[500:]
    whole.untyped_storage().resize_(0)  # as FSDP frees parameters
    part.untyped_storage().resize_(3000)
    for tensor, has in ((whole, "has only 0"), (part, "has only 3000")):
        for use in _users(tensor, 1 - rank):
            with pytest.raises(ValueError, match=has):
                use()
    whole.untyped_storage().resize_(4000)
    part.untyped_storage().resize_(4000)
    for tensor in (whole, part):
        (dist.send if rank == 0 else dist.recv)(tensor.fill_(1), 1 - rank)
    nothing = torch.empty(10)[10:]  # at the very end
    (dist.send if rank == 0 else dist.recv)(nothing, 1 - rank)
    exchange(None)


def test_storage_that_was_resized_under_its_tensor_is_refused() -> None:
    run_world(_resized, 2)


def _lazy(rank: int, size: int) -> None:
    conjugated = torch.full((3,), 1j, dtype=torch.complex64).conj()
    negated = torch._neg_view(torch.ones(3))
    for tensor, way in ((conjugated, "resolve_conj"), (negated, "resolve_neg")):
        for use in _users(tensor, 1 - rank)[2:]:
            with pytest.raises(ValueError, match=way):
                use()
    # torch resolves the arguments of its own functions.
    if rank == 0:
        dist.send(negated, 1)
    else:
        received = torch.zeros(3)
        dist.recv(received, 0)
        assert received.equal(torch.full((3,), -1.0))


def test_what_is_conjugated_or_negated_when_read_is_refused_or_resolved() -> None:
    run_world(_lazy, 2)
