"""`bench`: two processes of this host for ten seconds: the times of messages, beside Gloo's."""

import argparse
import os

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dlslime_backend.cli import pair
from dlslime_backend.cli.console import console, print_json, size_text, time_text

_MB = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def _rows(times: list[pair.Heard]) -> list[dict[str, float]]:
    """Return size and seconds of both backends, and how many times as fast dlslime is."""
    by_size: dict[int, dict[str, float]] = {}
    for fact in times:
        by_size.setdefault(fact["size"], {})[fact["backend"]] = fact["seconds"]
    return [
        {"size": size, **both, "ratio": both["gloo"] / both["dlslime"]}
        for size, both in sorted(by_size.items())
    ]


def _table(rows: list[dict[str, float]]) -> Table:
    table = Table(title="one way between two processes of this host, medians")
    for name in ("size", "dlslime", "MB/s", "gloo", "MB/s", "times as fast"):
        table.add_column(name, justify="right")
    for row in rows:
        speeds = [f"{row['size'] / row[name] / _MB:,.0f}" for name in ("dlslime", "gloo")]
        table.add_row(
            size_text(int(row["size"])),
            time_text(row["dlslime"]),
            speeds[0],
            time_text(row["gloo"]),
            speeds[1],
            f"{row['ratio']:.1f}",
        )
    return table


def run(options: argparse.Namespace) -> int:
    """Measure, and print the table; return 1 if the pair does not work, else 0."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=options.json) as progress:
        task = progress.add_task("measuring", total=2 * len(pair.SIZES))
        heard = pair.try_here(
            bench=True, on_line=lambda fact: progress.advance(task, "size" in fact)
        )[0]
    if "error" in heard:
        console.print(Text(f"the pair does not work: {heard['error']}", style="bold red"))
        console.print("python -m dlslime_backend doctor looks for the cause")
        return 1
    rows = _rows(heard["times"])
    if options.json:
        print_json({"route": heard["route"], "times": rows})
    else:
        console.print(Text(heard["route"]["text"]))
        console.print(_table(rows))
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if load > cores:
            text = f"this machine is busy (load {load:.1f}, {cores} processors): repeat it at rest"
            console.print(Text(text, style="yellow"))
    return 0
