"""`top`: a live view of the pairs of this user's jobs and their rates; Ctrl-C ends it."""

import argparse
import time

from rich.live import Live
from rich.table import Table
from rich.text import Text

from dlslime_backend.cli import job
from dlslime_backend.cli.console import console, size_text
from dlslime_backend.cli.explain import measured, rate_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `top`."""
    parser.add_argument("pid", type=int, nargs="?", help="default: every process of this user")
    parser.add_argument("--every", type=float, default=1.0, help="seconds (default: 1)")
    parser.add_argument("--rounds", type=int, default=0, help="end after so many (default: never)")


def table_of(reports: list[job.Report]) -> Table:
    """Return the table of all pairs, the busiest first."""
    table = Table(title=time.strftime("%H:%M:%S"))
    for name in ("pid", "group", "rank", "peer", "route", "sends", "receives", "sent", "received"):
        table.add_column(name, justify="left" if name in ("group", "route") else "right")
    table.add_column("pending", justify="right")
    rows = [
        (report, group, peer)
        for report in reports
        for group in report["groups"]
        for peer in group["peers"]
    ]
    rows.sort(key=lambda row: -(row[2]["sent_rate"] + row[2]["received_rate"]))
    for report, group, peer in rows:
        table.add_row(
            str(report["pid"]),
            Text(group["name"]),
            str(group["rank"]),
            str(peer["rank"]),
            peer["route"] or "-",
            rate_text(peer["sent_rate"]),
            rate_text(peer["received_rate"]),
            size_text(peer["sent_bytes"]),
            size_text(peer["received_bytes"]),
            str(peer["pending_sends"] + peer["pending_receives"]),
        )
    return table


def run(options: argparse.Namespace) -> int:
    """Show the table until Ctrl-C; return 1 if no process can be asked, else 0."""
    rounds = 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(table_of(measured(options.pid, options.every)), refresh=True)
                rounds += 1
                if rounds == options.rounds:
                    return 0
    except KeyboardInterrupt:
        return 0
    except job.JobError as error:
        console.print(Text(str(error), style="bold red"))
        return int(rounds == 0)
