"""Common parts of the benchmarks: options, clocks, tables."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from ends import settle

Rows = Sequence[Sequence[object]]


def seconds_of(device: str, work: Callable[[], None]) -> float:
    """Return the time of some work: by CUDA's events, or by the clock of a processor."""
    if device.startswith("cuda"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        settle(device)
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def megabytes(nbytes: float, seconds: float) -> str:
    """Return a bandwidth in 10^6 bytes a second, cut to an integer."""
    return str(int(nbytes / 1e6 / seconds))


def exponents(sizes: Iterable[int], itemsize: int = 4) -> list[int]:
    """Return the bytes of messages of 2 << e items."""
    return [(2 << exponent) * itemsize for exponent in sizes]


def print_table(columns: Sequence[str], rows: Rows, csv_file: str | None = None) -> None:
    """Print the rows, and write the texts to a file if named."""
    texts = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(columns))]
    texts.insert(1, ["-" * width for width in widths])
    for row in texts:
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
    if csv_file is not None:
        del texts[1]
        with Path(csv_file).open("w", newline="") as file:
            csv.writer(file).writerows(texts)
