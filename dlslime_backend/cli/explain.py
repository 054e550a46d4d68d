"""`explain`: how a running job's pairs travel: routes, NICs, counters, rates, and why."""

import argparse
import time
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dlslime_backend import histograms
from dlslime_backend.cli import job
from dlslime_backend.cli.console import console, print_json, size_text

_GB = 1e9
_NAMES = {
    "cma": "read from the peer's memory, by both processes at once",
    "rdma": "read and written by the NICs, without a copy by the host",
}
_TRAFFIC = ("sent", "received")


def expected_rate(peer: dict[str, Any]) -> float | None:
    """Return what the NICs of a pair could move, in bytes per second; None if nobody says."""
    total = 0.0
    for name in filter(None, peer["devices"].split(", ")):
        device, _, port = name.partition(":")
        path = Path(f"/sys/class/infiniband/{device}/ports/{port or 1}/rate")
        try:
            total += float(path.read_text().split()[0]) * _GB / 8
        except (OSError, ValueError, IndexError):
            return None
    return total or None


def by_size(report: job.Report, peer: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how messages to a peer travel, by their size."""
    limit = report["eager_limit"]
    large = peer["copy"]
    return [
        (f"up to {size_text(limit)}", "with the header, or into the receive if it is posted"),
        (f"above {size_text(limit)}", f"{large}: {_NAMES.get(large, 'in pieces')}"),
    ]


def _rates(old: job.Report, new: job.Report, seconds: float) -> dict[tuple[int, int], list[float]]:
    """Return bytes per second sent and received since the older report, by group and rank."""
    before = dict(_peers(old))
    rates = {}
    for key, peer in _peers(new):
        known = before.get(key, peer)
        rates[key] = [
            sum(peer[name] - known[name] for name in names) / seconds
            for names in (("sent_bytes", "written_bytes"), ("received_bytes", "read_bytes"))
        ]
    return rates


def _peers(report: job.Report) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    return [
        ((group["id"], peer["rank"]), peer) for group in report["groups"] for peer in group["peers"]
    ]


def measured(pid: int | None, seconds: float) -> list[job.Report]:
    """Return reports with rates: "sent_rate" and "received_rate" of each peer, in bytes per second.

    Raises:
        job.JobError: a process can't be asked.
    """
    first = {report["pid"]: report for report in job.reports(pid)}
    time.sleep(seconds)
    found = []
    for report in job.reports(pid):
        if report["pid"] in first:
            rates = _rates(first[report["pid"]], report, seconds)
            for key, peer in _peers(report):
                peer["sent_rate"], peer["received_rate"] = rates[key]
                peer["expected_rate"] = expected_rate(peer)
            found.append(report)
    return found


def rate_text(rate: float | None) -> str:
    """Return bytes per second for people."""
    return "-" if rate is None else f"{rate / _GB:.2f} GB/s"


def _print_peer(report: job.Report, peer: dict[str, Any]) -> None:
    where = f"pid {peer['pid']} on {peer['host']}" if peer["route"] else "not connected yet"
    console.print(Text(f"  rank {peer['rank']} ({where}): {peer['route'] or '-'}", style="bold"))
    if not peer["route"]:
        return
    table = Table.grid(padding=(0, 2))
    for name, text in by_size(report, peer):
        table.add_row(f"    {name}", Text(text))
    for traffic in peer["nics"]:
        sent, read = size_text(traffic["sent_bytes"]), size_text(traffic["read_bytes"])
        row = f"{sent} sent, {read} read, by {traffic['requests']:,} requests"
        table.add_row(f"    NIC {traffic['nic']}", row)
    for name in _TRAFFIC:
        count, total = peer[f"{name}_messages"], peer[f"{name}_bytes"]
        now = rate_text(peer[f"{name}_rate"])
        table.add_row(f"    {name}", f"{count:,} messages, {size_text(total)}; now {now}")
    if peer["expected_rate"]:
        table.add_row("    possible", rate_text(peer["expected_rate"]))
    for name in ("pending_sends", "pending_receives", "replaced_connections"):
        if peer[name]:
            table.add_row(f"    {name.replace('_', ' ')}", str(peer[name]))
    for route in peer["rejected"]:
        table.add_row(f"    not {route['route']}", Text(route["reason"]))
    console.print(table)


def _time_text(microseconds: float) -> str:
    return f"{microseconds:,.1f} us" if microseconds < 1e4 else f"{microseconds / 1e3:,.1f} ms"


def _print_operations(report: job.Report) -> None:
    """Print how long the operations of a process took, from the call to the end."""
    table = Table("operations", "size", "count", "mean", "half within", "99% within", box=None)
    for kind, numbers in histograms.summary(report["operations"]).items():
        for size, times in numbers["microseconds"].items():
            texts = [_time_text(times[name]) for name in ("mean", "p50", "p99")]
            table.add_row(f" {kind}", size, f"{times['count']:,}", *texts)
    if table.rows:
        console.print(table)


def print_report(report: job.Report) -> None:
    """Print the report of one process."""
    console.print(
        Text(
            f"process {report['pid']} on {report['host']}: dlslime {report['build']}, "
            f"{report['connections']} connections",
            style="bold cyan",
        )
    )
    for group in report["groups"]:
        console.print(Text(f" group {group['name']!r}: rank {group['rank']} of {group['size']}"))
        if group["failures"]:
            console.print(Text(f"  failed: {group['failures']}", style="bold red"))
        for peer in group["peers"]:
            _print_peer(report, peer)
    _print_operations(report)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `explain`."""
    parser.add_argument("pid", type=int, nargs="?", help="default: every process of this user")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring (default: 1)")


def run(options: argparse.Namespace) -> int:
    """Print the reports; return 1 if a process can't be asked, else 0."""
    try:
        found = measured(options.pid, options.seconds)
    except job.JobError as error:
        console.print(Text(str(error), style="bold red"))
        return 1
    if options.json:
        print_json(found)
    else:
        for report in found:
            print_report(report)
    return 0
