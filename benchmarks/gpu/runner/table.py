"""The end of gpu_check's output: steps run, figures, and a line for each question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def _steps(found: dict[str, Any]) -> Iterator[str]:
    for record in found["steps"]:
        yield f"  {record['step']:48s} {record.get('seconds', 0):7.1f} s  {record['outcome']}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _figures(found: dict[str, Any]) -> Iterator[str]:
    for entry in found["figures"]:
        name = f"{entry['part']} {entry['variant']}: {entry['name']}"
        ratio = "" if entry["ratio"] is None else f"ratio {entry['ratio']:.2f}"
        against = "" if entry["baseline"] is None else f"against {_number(entry['baseline'])}"
        value = f"{_number(entry['value'])} {entry['unit']}"
        yield f"  {name:52s} {value:>12s} {against:18s} {ratio:12s} {entry['target']}".rstrip()


def text(found: dict[str, Any]) -> str:
    """Return the tables."""
    lines = ["", "steps:", *_steps(found)]
    if found["figures"]:
        lines += ["figures:", *_figures(found)]
    lines += ["questions:"]
    for entry in found["questions"]:
        lines.append(f"  {entry['question']} {entry['answer']}")
    return "\n".join(lines)
