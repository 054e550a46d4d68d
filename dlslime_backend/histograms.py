"""Histograms of the times and sizes of a process's operations, as the engine keeps them."""

from collections.abc import Mapping, Sequence
from typing import Any

# Classes of a message's size: a time means little across sizes.
SIZES = ("to 8 KiB", "to 1 MiB", "above")

# "count", "sum" (of nanoseconds or bytes), and "buckets": for each bucket with values the smallest
# value beyond it and its number of values, in order. A bucket is an eighth of a power of two.
Histogram = Mapping[str, Any]


def quantile(histogram: Histogram, share: float) -> int:
    """Return the value that a share (0 to 1) of all values does not exceed; 0 without values.

    The value is the upper end of its bucket, at most an eighth too large.
    """
    wanted, passed = share * histogram["count"], 0
    for end, count in histogram["buckets"]:
        passed += count
        if passed >= wanted:
            return int(end)
    return 0


def cumulative(histogram: Histogram, bounds: Sequence[float]) -> list[int]:
    """Return for each bound, in order, how many values are in buckets up to it."""
    counts = []
    buckets = list(histogram["buckets"])
    place = passed = 0
    for bound in bounds:
        while place < len(buckets) and buckets[place][0] <= bound:
            passed += buckets[place][1]
            place += 1
        counts.append(passed)
    return counts


def summary(operations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of `stats()["operations"]` from the engine's report."""
    kinds: dict[str, Any] = {}
    for kind, report in operations.items():
        times = {
            size: {
                "count": histogram["count"],
                "mean": histogram["sum"] / histogram["count"] / 1e3,
                "p50": quantile(histogram, 0.5) / 1e3,
                "p99": quantile(histogram, 0.99) / 1e3,
            }
            for size, histogram in zip(SIZES, report["nanoseconds"], strict=True)
            if histogram["count"]
        }
        kinds[kind] = {
            "count": report["bytes"]["count"],
            "bytes": report["bytes"]["sum"],
            "microseconds": times,
        }
    return kinds
