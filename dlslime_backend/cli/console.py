"""What the commands print: colours on a terminal, plain text elsewhere, JSON when asked."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dlslime_backend.cli.finding import Finding, Level

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}
_PIPE_WIDTH = 4096  # columns
_MARKS = {Level.OK: "ok", Level.NOTE: "note", Level.PROBLEM: "PROBLEM"}

console = Console(highlight=False)
if not console.is_terminal:  # a line stays a line in files and pipes
    console = Console(highlight=False, width=_PIPE_WIDTH)


def print_json(value: object) -> None:
    """Print a value as JSON, without colours."""
    console.out(json.dumps(value, indent=2), highlight=False)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print findings, each with its remedy, and a last line that sums up."""
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        style = _STYLES[finding.level]
        line = Text.assemble(
            (f"{_MARKS[finding.level]:<8}", style), (f"{finding.check:<{width}}  ", "bold")
        )
        table = Table.grid()
        table.add_row(line, Text(finding.text))
        console.print(table)
        if finding.remedy:
            remedy = Text(f"-> {finding.remedy}", style="cyan")
            console.print(Padding(remedy, (0, 0, 0, width + 10), expand=False))
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    notes = sum(finding.level is Level.NOTE for finding in findings)
    style = "bold red" if problems else "bold green"
    console.print(Text(f"{problems} problems, {notes} notes", style=style))


def size_text(count: int) -> str:
    """Return a number of bytes for people: "64 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def time_text(seconds: float) -> str:
    """Return a time for people: "2.7 us", "11 ms"."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"
