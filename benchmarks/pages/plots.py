"""PNG plots, by matplotlib if installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring.report import size_name

Curve = list[tuple[int, float, float]]  # bytes, 10^6 bytes per second, milliseconds


def _pyplot() -> Any:
    """Load the library when needed; return None if missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is not installed", flush=True)
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def curves(path: Path, title: str, series: dict[str, Curve]) -> None:
    """Draw bandwidth and latency by message size, with a curve for each name."""
    pyplot = _pyplot()
    if pyplot is None or not any(series.values()):
        return
    figure, panels = pyplot.subplots(1, 2, figsize=(13, 5))
    for name, curve in series.items():
        sizes = [size for size, _, _ in curve]
        panels[0].plot(sizes, [rate for _, rate, _ in curve], marker="o", label=name)
        panels[1].plot(sizes, [taken for _, _, taken in curve], marker="o", label=name)
    every = sorted({size for curve in series.values() for size, _, _ in curve})
    for panel, label in zip(panels, ("Bandwidth (MB/s)", "Latency (ms)"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(every, [size_name(size) for size in every], rotation=60, fontsize=8)
        panel.set_xlabel("Message size")
        panel.set_ylabel(label)
        panel.grid(True, which="both", alpha=0.3)
        panel.legend()
    _save(pyplot, figure, path, title)


def heat_map(path: Path, title: str, labels: Sequence[str], matrix: list[list[float]]) -> None:
    """Draw a square for each pair, with its number; no number if not finite."""
    pyplot = _pyplot()
    if pyplot is None:
        return
    side = max(5.0, 0.9 * len(labels) + 2)
    figure, panel = pyplot.subplots(figsize=(side + 1, side))
    largest = max(value for values in matrix for value in values if value == value)
    shown = panel.imshow(matrix, cmap="viridis", vmin=0, vmax=largest)
    panel.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
    panel.set_yticks(range(len(labels)), labels, fontsize=8)
    panel.set_xlabel("target")
    panel.set_ylabel("initiator")
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            if value == value:  # not NaN
                ink = "black" if value > largest * 0.6 else "white"
                panel.text(column, row, f"{value:,.0f}", ha="center", va="center", color=ink)
    figure.colorbar(shown, label="MB/s")
    _save(pyplot, figure, path, title)


def bars(path: Path, title: str, heights: dict[str, float], unit: str) -> None:
    """Draw a bar for each name."""
    pyplot = _pyplot()
    if pyplot is None or not heights:
        return
    figure, panel = pyplot.subplots(figsize=(max(5.0, 1.2 * len(heights) + 2), 5))
    panel.bar(list(heights), list(heights.values()))
    panel.set_ylabel(unit)
    _save(pyplot, figure, path, title)


def _save(pyplot: Any, figure: Any, path: Path, title: str) -> None:
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"plot saved to {path}", flush=True)
