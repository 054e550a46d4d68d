"""Fits times as a fixed part and a part for each byte or page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Line:
    """time = fixed + each * n.

    Attributes:
        worst: the largest deviation of a point from the line, as a share of the point.
    """

    fixed: float
    each: float
    worst: float


def line(points: Mapping[int, float]) -> Line:
    """Fit a line through times by n; each point counts by its relative error.

    With absolute errors the largest size alone would decide, and the fixed part be noise.

    Raises:
        ValueError: there are fewer than two points.
    """
    if len(points) < 2:
        raise ValueError("a line needs two points")
    weights = {n: 1 / time**2 for n, time in points.items()}
    whole = sum(weights.values())
    mean_n = sum(weights[n] * n for n in points) / whole
    mean_time = sum(weights[n] * time for n, time in points.items()) / whole
    spread = sum(weights[n] * (n - mean_n) ** 2 for n in points)
    together = sum(weights[n] * (n - mean_n) * (points[n] - mean_time) for n in points)
    each = together / spread
    fixed = mean_time - each * mean_n
    worst = max(abs(fixed + each * n - time) / time for n, time in points.items())
    return Line(fixed, each, worst)
