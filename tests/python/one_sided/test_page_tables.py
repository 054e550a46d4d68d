"""Pieces as arrays: page tables of 32 and 64 bits, rows, and numbers that are too large."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from harness import all_routes, dlslime_only, run_world, sync
from patterns import expect, expect_pattern, pattern
from refusal import refused_in_a_line
from test_one_sided import NBYTES, side_of

pytestmark = dlslime_only

PAGE_BYTES = 1000
HERE, THERE = [3, 0, 5, 6, 59], [0, 7, 9, 10, 59]
TABLES: dict[str, Callable[[list[int]], Any]] = {
    "numpy int32": lambda pages: np.array(pages, dtype=np.int32),
    "torch int32": lambda pages: torch.tensor(pages, dtype=torch.int32),
    "torch int64": lambda pages: torch.tensor(pages),
    "numpy int64": lambda pages: np.array(pages, dtype=np.int64),
    "list": list,
}


def _page_tables(rank: int, size: int, ours: str, theirs: str) -> None:
    side = side_of(rank)
    if rank == 0:
        tables = TABLES[ours](HERE), TABLES[theirs](THERE)
        side.read((*tables, PAGE_BYTES)).wait()
        expected = pattern(NBYTES, 0)
        source = pattern(NBYTES, 1)
        for to, at in zip(HERE, THERE):
            begin = at * PAGE_BYTES
            expected[to * PAGE_BYTES :][:PAGE_BYTES] = source[begin : begin + PAGE_BYTES]
        expect(side.memory, expected)
    sync("read")


@pytest.mark.parametrize("theirs", ["numpy int32", "torch int64"])
@pytest.mark.parametrize("ours", TABLES)
def test_page_tables_of_32_and_64_bits(ours: str, theirs: str) -> None:
    run_world(_page_tables, 2, ours, theirs)


def _rows(rank: int, size: int) -> None:
    """Pieces as an array [N, 3] with a piece in each row."""
    rows = [[0, 5, 3], [100, 70, 1], [4000, 50_000, 5000], [NBYTES - 1, 0, 1]]
    for form in (
        np.array(rows),
        np.array(rows, dtype=np.int32),
        np.asfortranarray(np.array(rows)),
        np.array(rows, dtype=np.int64)[::-1],
        torch.tensor(rows),
        torch.tensor(rows, dtype=torch.int32),
        torch.tensor(rows).t().contiguous().t(),
    ):
        key = f"{type(form).__name__} {form.dtype} {_layout(form)}"
        side = side_of(rank, key=key)
        if rank == 0:
            side.read(form).wait()
            expected = pattern(NBYTES, 0)
            for to, at, length in rows:
                expected[to : to + length] = pattern(NBYTES, 1)[at : at + length]
            expect(side.memory, expected)
        sync(f"{key}: read")


def _layout(form: Any) -> str:
    return str(form.strides if isinstance(form, np.ndarray) else form.stride())


@all_routes
def test_pieces_as_rows_of_one_array(env: dict[str, str]) -> None:
    run_world(_rows, 2, env=env)


def _no_rows(rank: int, size: int) -> None:
    side = side_of(rank, other=rank)
    assert side.read(np.zeros((0, 3), dtype=np.int64)).wait() is None
    assert side.read(torch.zeros((0, 3), dtype=torch.int32)).wait() is None
    for wrong in (
        *(np.zeros((2, 4), int), np.zeros((3, 2), int), np.zeros(3, int), np.zeros((1, 3, 1), int)),
        *(np.zeros((2, 3)), torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.int64)),
        *(torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64, device="meta")),
        *(np.zeros((2, 3), dtype=bool), np.zeros((2, 3), dtype=object)),
    ):
        what = f"{type(wrong).__name__} {wrong.dtype} {tuple(wrong.shape)}"
        refused_in_a_line(lambda wrong=wrong: side.read(wrong), what)
    expect_pattern(side.memory, rank)


def test_arrays_that_are_no_rows_of_pieces_are_refused() -> None:
    run_world(_no_rows, 1)


def _page_beyond(rank: int, size: int) -> None:
    """An error about a page out of range names the page's number, not a product."""
    side = side_of(rank, other=rank)
    far = 2**62
    numbers: list[tuple[Any, Any, int, str]] = [
        (np.array([0, far]), np.array([0, 1]), 16, rf"page {far}\b"),
        (np.array([0, 1]), torch.tensor([0, far]), 16, rf"page {far}\b"),
        (np.array([0]), np.array([-3]), 16, r"page -3\b"),
        (np.array([2**63 - 1]), np.array([0]), 2**62, rf"page {2**63 - 1}\b"),
        # In 32 bits the product would be small.
        (np.array([2**22], np.int32), np.array([0], np.int32), 1024, rf"{2**32}|page {2**22}\b"),
        (
            np.array([2**31 - 1], np.int32),
            np.array([0], np.int32),
            2**31,
            rf"{(2**31 - 1) * 2**31}|page {2**31 - 1}\b",
        ),
        (np.array([-1], np.int32), np.array([0], np.int32), 16, r"page -1\b"),
    ]
    for here, there, page_bytes, text in numbers:
        with pytest.raises(ValueError, match=f"dlslime.*{text}"):
            side.read((here, there, page_bytes))
    unsigned = np.array([2**64 - 1], np.uint64)
    refused_in_a_line(lambda: side.read((unsigned, unsigned, 16)), "numbers of 64 bits")
    expect_pattern(side.memory, rank)


def test_page_number_that_overflows_is_named() -> None:
    run_world(_page_beyond, 1)
