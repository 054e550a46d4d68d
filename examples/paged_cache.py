"""A cache of keys and values in blocks, for transformers' models and for dlslime's transfers.

All requests share one tensor; a request owns any of its blocks. A block has the keys and values of
16 tokens in every layer: in each layer two pages, one of keys and one of values.
"""

from collections.abc import Callable, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

import dlslime_backend as dlslime

LAYERS, KV_HEADS, HEAD_DIM = 8, 4, 64
BLOCK = 16  # tokens
PAGE = BLOCK * KV_HEADS * HEAD_DIM * 4  # bytes: the keys, or the values, of a block in one layer


def make_pages(blocks: int) -> torch.Tensor:
    """Return an empty cache of a number of blocks.

    Returns:
        float32 of shape [layers, keys and values: 2, blocks, tokens: 16, heads, head_dim], full of
        NaN, so that a page that was not copied spoils all results.
    """
    return torch.full((LAYERS, 2, blocks, BLOCK, KV_HEADS, HEAD_DIM), float("nan"))


def blocks_for(tokens: int) -> int:
    """Return the number of blocks for a number of tokens."""
    return -(-tokens // BLOCK)


def hand_out(lengths: Sequence[int], shuffled: bool) -> list[torch.Tensor]:
    """Assign blocks to requests.

    Args:
        lengths: number of tokens that each request needs room for.
        shuffled: whether the blocks of a request are scattered, as after a long time of service.

    Returns:
        A table for each request: numbers of its blocks in the order of its tokens, int64.
    """
    counts = [blocks_for(length) for length in lengths]
    numbers = torch.randperm(sum(counts)) if shuffled else torch.arange(sum(counts))
    return list(numbers.split(counts))


class PagedLayer(CacheLayerMixin):
    """One layer of a `PagedCache`."""

    is_sliding = False

    def __init__(self, pages: torch.Tensor, table: torch.Tensor, length: int) -> None:
        super().__init__()
        self.pages = pages  # [2, blocks, tokens, heads, head_dim]
        self.table = table
        self.length = length
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values of new tokens; return keys and values of all tokens.

        Arguments and results are float32 of shape [1, heads, tokens, head_dim].
        """
        positions = torch.arange(self.length, self.length + key_states.shape[2])
        blocks, slots = self.table[positions // BLOCK], positions % BLOCK
        for pages, states in zip(self.pages, (key_states, value_states), strict=True):
            pages[blocks, slots] = states[0].transpose(0, 1)
        self.length += len(positions)
        blocks = self.table[: blocks_for(self.length)]
        keys, values = self.pages[:, blocks].flatten(1, 2)[:, : self.length].transpose(1, 2)
        return keys[None], values[None]

    def get_seq_length(self) -> int:
        """Return the number of stored tokens."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of tokens after `query_length` new ones, and the first position, 0."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """Return the number of tokens that the blocks have room for."""
        return len(self.table) * BLOCK

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the pages exist from the beginning."""


class PagedCache(Cache):
    """The keys and values of one request, in the form of a transformers cache.

    Args:
        pages: from `make_pages`.
        table: the request's blocks, from `hand_out`.
        length: number of tokens already stored.
        on_written: called with the number of a layer after its new tokens have been stored.
    """

    def __init__(
        self,
        pages: torch.Tensor,
        table: torch.Tensor,
        length: int = 0,
        on_written: Callable[[int], None] = lambda layer: None,
    ) -> None:
        super().__init__(layers=[PagedLayer(layer, table, length) for layer in pages])
        self.on_written = on_written

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new tokens of a layer, and call `on_written`; see `PagedLayer.update`."""
        everything = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self.on_written(layer_idx)
        return everything


def pages_of(
    region: dlslime.Region | dlslime.RemoteRegion, layer: int, blocks: torch.Tensor
) -> torch.Tensor:
    """Return the page numbers of a layer for some blocks: pages of keys, then pages of values."""
    stride = region.nbytes // (LAYERS * 2 * PAGE)  # blocks of the whole cache
    keys = layer * 2 * stride + blocks
    return torch.cat([keys, keys + stride])
