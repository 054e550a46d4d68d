"""Ring attention by batch_isend_irecv equals attention over the whole sequence in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from ring_attention import ring_attention

HEADS = 4
BLOCK = 48
DIM = 16


def check(causal: bool, group: dist.ProcessGroup | None, seed: int) -> None:
    """Compare the rank's block with its part of the whole."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, HEADS, world * BLOCK, DIM, generator=generator)
    mine = (t.chunk(world, dim=-2)[rank].contiguous() for t in (q, k, v))
    got = ring_attention(*mine, causal, group)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(got, expected.chunk(world, dim=-2)[rank], atol=1e-5, rtol=1e-4)


def ring() -> None:
    """Every position sees all others."""
    check(causal=False, group=None, seed=1)


def ring_causal() -> None:
    """Ranks have unequal work, so the ranks drift apart between hops."""
    for seed in range(5):
        check(causal=True, group=None, seed=seed)


def ring_on_two_groups() -> None:
    """Rings over two groups of equal ranks, in opposite directions, take turns."""
    ranks = list(range(dist.get_world_size()))
    forward = dist.new_group(ranks)
    backward = dist.new_group(ranks[::-1], sort_ranks=False)
    for seed in range(4):
        check(causal=seed % 2 == 0, group=(forward, backward)[seed % 2], seed=seed)
