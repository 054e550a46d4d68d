"""A cache of keys and values in blocks, for models of transformers and for dlslime's transfers.

All requests share one tensor, of which each has some blocks, anywhere. A block has the keys and
values of 16 tokens in every layer. What it has in one layer are two pages: the keys and the values.
"""

from collections.abc import Callable, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

import dlslime_backend as dlslime

LAYERS, KV_HEADS, HEAD_DIM = 8, 4, 64
BLOCK = 16  # tokens
PAGE = BLOCK * KV_HEADS * HEAD_DIM * 4  # bytes: the keys, or the values, of a block in one layer


def make_pages(blocks: int) -> torch.Tensor:
    """Makes an empty cache for this many blocks.

    Returns:
        float32 of shape [layers, keys and values: 2, blocks, tokens: 16, heads, head_dim]. It is
        full of NaN, so a page that does not arrive spoils all that comes of it.
    """
    return torch.full((LAYERS, 2, blocks, BLOCK, KV_HEADS, HEAD_DIM), float("nan"))


def blocks_for(tokens: int) -> int:
    """Returns how many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


def hand_out(lengths: Sequence[int], shuffled: bool) -> list[torch.Tensor]:
    """Gives each request its blocks.

    Args:
        lengths: how many tokens each request is to have room for.
        shuffled: whether the blocks of a request are anywhere, as after a day of service.

    Returns:
        A table per request: the numbers of its blocks in the order of its tokens, int64.
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
        """Stores the new tokens' keys and values; returns those of all tokens.

        Each of these is float32 of shape [1, heads, tokens, head_dim].
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
        """Returns how many tokens are stored."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many tokens there will be with so many new ones, and which is the first."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """Returns for how many tokens there is room."""
        return len(self.table) * BLOCK

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the pages are there from the beginning."""


class PagedCache(Cache):
    """The keys and values of one request, as transformers wants them, in blocks of all requests.

    Args:
        pages: from `make_pages`.
        table: the request's blocks, as `hand_out` returns them.
        length: how many tokens are in them already.
        on_written: called with the number of a layer when its new tokens have been stored.
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
        """Stores the new tokens of a layer, and says so; see `PagedLayer.update`."""
        everything = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self.on_written(layer_idx)
        return everything


def pages_of(
    region: dlslime.Region | dlslime.RemoteRegion, layer: int, blocks: torch.Tensor
) -> torch.Tensor:
    """Returns which pages of a cache hold a layer's keys, and then its values, of these blocks."""
    stride = region.nbytes // (LAYERS * 2 * PAGE)  # blocks of the whole cache
    keys = layer * 2 * stride + blocks
    return torch.cat([keys, keys + stride])
