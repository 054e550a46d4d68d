"""Tiny models and data, equal on every rank and in every process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 32
HEADS = 4
VOCABULARY = 64
SEQUENCE = 12


class Attention(nn.Module):
    """Causal self-attention with projections that can be split over ranks by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, width] to an equal shape."""
        # -1: with tensor parallelism each rank sees a part of the heads.
        q, k, v = (
            project(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, width] to an equal shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model small enough for steps of milliseconds."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map int64 [batch, sequence] to logits [batch, sequence, vocabulary]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make_transformer(layers: int = 2) -> Transformer:
    """Return a model, with equal weights in every call."""
    torch.manual_seed(7)
    return Transformer(layers)


def make_batches(steps: int, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return ``steps`` pairs of int64 [batch, sequence]: tokens, and the next token as target."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randint(VOCABULARY, (steps, batch, SEQUENCE), generator=generator)
    return [(tokens, (tokens + 1) % VOCABULARY) for tokens in inputs]


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all tokens of the batch."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
