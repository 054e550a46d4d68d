"""Figures with their targets, the table of figures, and the JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

HERE = Path(__file__).resolve().parents[1]


@dataclass
class Figure:
    """A line of the report.

    Attributes:
        value: ours; ``baseline`` is the other backend's, in equal units.
        ratio: the quantity limited by the target.
        target: in words; ``ok`` is None without a target.
        others: the share of the machine used by other programs meanwhile.
    """

    part: str
    name: str
    unit: str
    value: float
    baseline: float | None
    ratio: float | None
    target: str = ""
    ok: bool | None = None
    others: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return the word printed: ok, short, or nothing without a target."""
        return {True: "ok", False: "short", None: ""}[self.ok]


def lab_parser(about: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the common options of benchmarks of two hosts."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, required=True, help="where rank 0 writes the figures")
    return parser


def lab_options(about: str | None, rounds: int) -> argparse.Namespace:
    """Return the options of a benchmark without further options."""
    return lab_parser(about, rounds).parse_args()


def at_least(ratio: float, factor: float | None) -> dict[str, Any]:
    """Return the target of a speed-up: ``ratio`` at least ``factor``; no target for None."""
    if factor is None:
        return {"ratio": ratio}
    return {"ratio": ratio, "target": f">= {factor:g}x", "ok": ratio >= factor}


def at_most(ratio: float, factor: float) -> dict[str, Any]:
    """Return the target of a cost: ``ratio`` at most ``factor``."""
    return {"ratio": ratio, "target": f"<= {factor:g}x", "ok": ratio <= factor}


def summary(samples: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Return median, 10th and 90th percentile and count of the samples, multiplied by ``scale``."""
    ordered = sorted(float(f"{value * scale:.5g}") for value in samples)
    last = len(ordered) - 1
    return {
        "median": median(ordered),
        "p10": ordered[round(last * 0.1)],
        "p90": ordered[round(last * 0.9)],
        "count": len(ordered),
    }


def size_name(size: int) -> str:
    """Return the name of a size: 8 -> "8 B", 65536 -> "64 KiB"."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def _command_output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def without_folder(word: str) -> str:
    """Return the last name of an absolute path: the rest is of one machine. Other words stay."""
    return Path(word).name if word.startswith("/") else word


def environment() -> dict[str, Any]:
    """Return the properties of the machine that a reader needs to judge the numbers."""
    model = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    changed = _command_output("git", "status", "--porcelain", "--untracked-files=no")
    words = [f"benchmarks/{Path(sys.argv[0]).name}", *map(without_folder, sys.argv[1:])]
    return {
        "cpu": model[0] if model else platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "load_at_start": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _command_output("git", "rev-parse", "--short", "HEAD") or "unknown",
        "changed_since": bool(changed),
        "command": " ".join(["python", *words]),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def line(figure: Figure) -> str:
    """Return the line of a figure that is printed while the run goes on."""
    return (
        f"{figure.part:15s} {figure.name:34s} {_number(figure.value):>8s} {figure.unit:11s} "
        f"against {_number(figure.baseline):>8s}: {_number(figure.ratio):>6s} "
        f"{figure.target:12s} {figure.verdict:5s} others {figure.others:4.0%}"
    )


def table(figures: Sequence[Figure], ours: str, base: str) -> str:
    """Return the figures as aligned text."""
    rows = [("part", "figure", "unit", base, ours, "ratio", "target", "", "others")]
    rows += [
        (
            f.part,
            f.name,
            f.unit,
            _number(f.baseline),
            _number(f.value),
            _number(f.ratio),
            f.target,
            f.verdict,
            f"{f.others:.0%}",
        )
        for f in figures
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = {3, 4, 5, 8}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def save(path: Path, about: dict[str, Any], figures: Sequence[Figure], errors: list[str]) -> None:
    """Write everything as JSON; make the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "environment": about,
        "figures": [asdict(figure) for figure in figures],
        "errors": errors,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
