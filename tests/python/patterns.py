"""Contents for messages, in which a missing, doubled, moved or stale chunk shows."""

from __future__ import annotations

import functools

import torch

# A prime length, so that a chunk moved by any power of two does not match its new place.
_BLOCK_BYTES = 65521


@functools.cache
def _block(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (_BLOCK_BYTES,), dtype=torch.uint8, generator=generator)


def pattern(nbytes: int, seed: int = 0) -> torch.Tensor:
    """Make a uint8 tensor of `nbytes` bytes that depend on `seed`."""
    block = _block(seed % 251)
    return block.repeat(nbytes // _BLOCK_BYTES + 1)[:nbytes].clone()


def blank(nbytes: int) -> torch.Tensor:
    """Make a uint8 tensor for receiving `nbytes` bytes, filled with a value of its own."""
    return torch.full((nbytes,), 0xEE, dtype=torch.uint8)


def expect(actual: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Raise AssertionError unless both tensors hold equal bytes; the error tells the place."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if torch.equal(actual, expected):
        return
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (actual, expected))
    wrong = (a != b).nonzero().flatten()
    if len(wrong) == 0:
        return  # a NaN is not equal to itself, but has equal bytes
    first = int(wrong[0])
    raise AssertionError(
        f"{what}: {len(wrong)} of {len(a)} bytes differ, first at {first} "
        f"({int(a[first])}, not {int(b[first])}), last at {int(wrong[-1])}"
    )


def expect_pattern(actual: torch.Tensor, seed: int, what: object = "") -> None:
    """Raise AssertionError unless `actual` holds `pattern(len(actual), seed)`."""
    expect(actual, pattern(actual.numel(), seed), what or f"pattern {seed}")
