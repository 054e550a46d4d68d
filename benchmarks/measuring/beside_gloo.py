"""Draws the README's plot of a run of p2p.py: the one-way time of a message, beside Gloo.

python benchmarks/measuring/beside_gloo.py benchmarks/results/full.json docs/images/p2p.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
WIDTH, HEIGHT = 7.0, 2.6  # inches
COLOURS = {"dlslime": "#0b6e99", "Gloo": "#b3541e"}


def size_of(name: str) -> int:
    """Return the bytes of "64 KiB"."""
    number, unit = name.split()
    return int(number) * UNITS[unit]


def series(path: Path) -> tuple[list[str], list[float], list[float]]:
    """Return the names of sizes, and microseconds of dlslime and of Gloo, of a run of p2p.py."""
    figures = json.loads(path.read_text())["figures"]
    rows = [f for f in figures if f["part"] == "latency" and ", C" not in f["name"]]
    rows.sort(key=lambda row: size_of(row["name"]))
    names = [row["name"] for row in rows]
    return names, [row["value"] for row in rows], [row["baseline"] for row in rows]


def draw(path: Path, out: Path) -> None:
    """Write the plot as SVG, with equal bytes for equal results."""
    mpl.rcParams.update({"svg.hashsalt": "dlslime", "svg.fonttype": "none", "font.size": 9})
    names, ours, gloo = series(path)
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
    figure.patch.set_facecolor("white")
    places = range(len(names))
    axes.plot(places, gloo, marker="o", markersize=3, color=COLOURS["Gloo"], label="Gloo")
    axes.plot(places, ours, marker="o", markersize=3, color=COLOURS["dlslime"], label="dlslime")
    axes.set_yscale("log")
    axes.set_xticks(places, names, rotation=45, ha="right")
    axes.set_ylabel("one way, us")
    axes.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
