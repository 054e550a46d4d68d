"""Tables as they grow, progress, CSV and JSON."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from measuring import report
from pages.pairs import Row

EVERY = 10.0  # seconds between two lines of progress, without a terminal

Cells = Sequence[str]


def _right(rows: Sequence[Cells], column: int) -> bool:
    """Tell whether a column holds numbers."""
    cells = [row[column].replace(",", "").replace(".", "").lstrip("-") for row in rows]
    return all(cell.isdecimal() for cell in cells if cell) and any(cells)


def markdown(headers: Cells, rows: Sequence[Cells]) -> str:
    """Return a table in GitHub's format, as printed by the original."""
    widths = [max(len(row[n]) for row in [headers, *rows]) for n in range(len(headers))]
    right = [_right(rows, n) for n in range(len(headers))]

    def line(cells: Cells) -> str:
        parts = [
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(cells, widths, right, strict=True)
        ]
        return "| " + " | ".join(parts) + " |"

    rule = [
        "-" * (width + 1) + (":" if flush else "-")
        for width, flush in zip(widths, right, strict=True)
    ]
    return "\n".join([line(headers), "|" + "|".join(rule) + "|", *map(line, rows)])


def write_csv(path: Path, headers: Cells, rows: Sequence[Cells]) -> None:
    """Write the table's own strings, as the original does."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(headers)
        writer.writerows(rows)


def write_json(
    path: Path,
    options: argparse.Namespace,
    rows: Sequence[dict[str, Any]],
    missing: dict[str, str],
    **more: Any,
) -> None:
    """Write every figure, unrounded, with the machine and the options for judging figures."""
    asked = {name: _plain(value) for name, value in vars(options).items()}
    about = {"environment": report.environment(), "options": asked, "missing": missing}
    path.write_text(json.dumps({**about, "rows": list(rows), **more}, indent=1) + "\n")


def _plain(value: Any) -> Any:
    known = isinstance(value, (int, float, bool, list, type(None)))
    return value if known else report.without_folder(str(value))


class _Lines:
    """The screen without a terminal, or without rich: a line for each row."""

    def __init__(self, headers: Cells) -> None:
        self._headers = headers
        self._begun = False
        self._last = time.monotonic()

    def row(self, cells: Cells) -> None:
        if not self._begun:
            print("  ".join(self._headers), flush=True)
            self._begun = True
        pairs = zip(cells, self._headers, strict=True)
        print("  ".join(cell.rjust(len(header)) for cell, header in pairs), flush=True)

    def progress(self, what: str, share: float) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            print(f"... {what}: {share:.0%}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the screen; nothing is left to do."""


# Left out of the growing table, in order, until the table fits on the terminal.
SPARED = (
    "Total Transport (bytes)",
    "#Channels",
    "Batch Size",
    "Num Concurrency",
    "Target Affinity",
    "Initiator Affinity",
    "p90(ms)",
    "CPU(s/GB)",
    "p99(ms)",
    "Transfer Engine",
    "p50(ms)",
)
CELL = 8  # characters that a cell may need under any header


def _fitting(headers: Cells, width: int) -> list[int]:
    """Return the columns for a terminal of `width` characters."""
    kept = list(range(len(headers)))

    def needed() -> int:
        return sum(max(len(headers[n]), CELL) + 3 for n in kept) + 1

    for name in SPARED:
        if needed() > width and name in headers:
            kept.remove(headers.index(name))
    return kept


class _Rich:
    """The screen on a terminal: a table that grows, and a bar below it."""

    def __init__(self, headers: Cells) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Table

        console = Console()
        self._kept = _fitting(headers, console.width)
        self._table = Table()
        for number in self._kept:
            self._table.add_column(headers[number], justify="right", no_wrap=True)
        words = TextColumn("{task.description}")
        self._bar = Progress(words, BarColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task("", total=1.0)
        self._live = Live(
            Group(self._table, self._bar), console=console, refresh_per_second=4, transient=True
        )
        self._live.start()
        self._last = 0.0

    def row(self, cells: Cells) -> None:
        self._table.add_row(*(cells[number] for number in self._kept))

    def progress(self, what: str, share: float) -> None:
        now = time.monotonic()
        if now - self._last >= 0.1:  # more updates would cost time in measurements
            self._last = now
            self._bar.update(self._task, description=what, completed=share)

    def end(self) -> None:
        self._live.stop()


class _Silent:
    """The screen of ranks that print nothing."""

    def row(self, cells: Cells) -> None: ...

    def progress(self, what: str, share: float) -> None: ...

    def end(self) -> None: ...


class Screen:
    """A table that grows while a run goes on; `speaks` is True at a single rank."""

    def __init__(self, headers: Cells, speaks: bool) -> None:
        self.headers = headers
        self.rows: list[Cells] = []
        self._speaks = speaks
        self._shown = self._choose()

    def _choose(self) -> Any:
        if not self._speaks:
            return _Silent()
        if sys.stdout.isatty():
            try:
                return _Rich(self.headers)
            except ImportError:
                pass
        return _Lines(self.headers)

    def row(self, cells: Cells) -> None:
        """Add a line."""
        self.rows.append(cells)
        self._shown.row(cells)

    def progress(self, what: str, share: float) -> None:
        """Show the share of work done, from time to time."""
        self._shown.progress(what, share)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shown.end()

    def table(self) -> str:
        """Return the whole table."""
        return markdown(self.headers, self.rows)


def say(text: str, speaks: bool = True) -> None:
    """Print a line, by the rank that speaks."""
    if speaks:
        print(text, flush=True)


def columns(row: Row) -> list[str]:
    """Return the cells common to all programs, behind the pages' own."""
    return [
        *(f"{value:.3f}" for value in (row.p50, row.p90, row.p99)),
        f"{row.cpu:.3f}",
        row.verified,
    ]


COMMON = ["p50(ms)", "p90(ms)", "p99(ms)", "CPU(s/GB)", "Verified"]


def conclude(
    screen: Screen,
    options: argparse.Namespace,
    rows: Sequence[dict[str, Any]],
    missing: dict[str, str],
    **more: Any,
) -> None:
    """Print the table, and write the files asked for."""
    if screen.rows:
        print("\nBenchmark Results:")
        print(screen.table(), flush=True)
    if options.save_csv:
        write_csv(options.csv_filename, screen.headers, screen.rows)
        print(f"CSV saved to {options.csv_filename}", flush=True)
    if options.json:
        write_json(options.json, options, rows, missing, **more)
        print(f"JSON saved to {options.json}", flush=True)
