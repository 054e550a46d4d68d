"""`metrics`: counters of this user's jobs for Prometheus, as text or at a local port."""

import argparse
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.text import Text

from dlslime_backend import histograms
from dlslime_backend.cli import job
from dlslime_backend.cli.console import console

_LABELS = ("pid", "group", "rank", "peer", "route")


class _Counter(NamedTuple):
    """A counter of a pair: its name in the reports, its name for Prometheus, and what it counts."""

    member: str
    name: str
    text: str


COUNTERS = [
    _Counter("sent_messages", "dlslime_sent_messages", "Messages sent to the peer."),
    _Counter("sent_bytes", "dlslime_sent_bytes", "Bytes of the messages sent to the peer."),
    _Counter("received_messages", "dlslime_received_messages", "Messages received from the peer."),
    _Counter("received_bytes", "dlslime_received_bytes", "Bytes of the messages received."),
    _Counter("eager_messages", "dlslime_eager_messages", "Messages sent with their header."),
    _Counter("pushed_messages", "dlslime_pushed_messages", "Messages written into the receive."),
    _Counter("rendezvous_messages", "dlslime_rendezvous_messages", "Messages sent by rendezvous."),
    _Counter("cuda_ipc_messages", "dlslime_cuda_ipc_messages", "Messages copied by a GPU."),
    _Counter("gpudirect_messages", "dlslime_gpudirect_messages", "Messages written by a NIC."),
    _Counter("read_bytes", "dlslime_read_bytes", "Bytes of one-sided reads from the peer."),
    _Counter("written_bytes", "dlslime_written_bytes", "Bytes of one-sided writes to the peer."),
    _Counter("replaced_connections", "dlslime_replaced_connections", "Connections replaced."),
]


# Upper ends of the buckets that Prometheus gets.
SECONDS = [base * 10.0**power for power in range(-6, 1) for base in (1, 2, 5)] + [10.0]
BYTES = [float(64 << (2 * power)) for power in range(13)]  # to 1 GiB


class JobCollector:
    """Makes Prometheus' families of metrics out of the reports of running processes.

    A process that ends takes its counters along; Prometheus takes a new pid for a new series.
    """

    def collect(self) -> Iterator[Any]:
        """Yield the families; called by prometheus-client for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        try:
            reports = job.reports()
        except job.JobError:
            reports = []  # no job runs now
        pairs = list(_pairs(reports))
        for counter in COUNTERS:
            family = CounterMetricFamily(counter.name, counter.text, labels=_LABELS)
            for labels, peer in pairs:
                family.add_metric(labels, peer[counter.member])
            yield family
        pending = GaugeMetricFamily(
            "dlslime_pending_operations",
            "Operations posted and not over.",
            labels=[*_LABELS, "kind"],
        )
        for labels, peer in pairs:
            for kind in ("sends", "receives"):
                pending.add_metric([*labels, kind], peer[f"pending_{kind}"])
        yield pending
        yield from _nics(pairs)
        yield from _operations(reports)


def _nics(pairs: list[tuple[list[str], dict[str, Any]]]) -> Iterator[Any]:
    """Yield the counters of the NICs of each pair's present connection."""
    from prometheus_client.core import CounterMetricFamily

    for member, text in (
        ("requests", "Requests given to the NIC for the peer."),
        ("sent_bytes", "Bytes sent by the NIC to the peer, with all headers."),
        ("read_bytes", "Bytes read by the NIC from the peer."),
    ):
        family = CounterMetricFamily(f"dlslime_nic_{member}", text, labels=[*_LABELS, "nic"])
        for labels, peer in pairs:
            for traffic in peer["nics"]:
                family.add_metric([*labels, traffic["nic"]], traffic[member])
        yield family


def _operations(reports: list[job.Report]) -> Iterator[Any]:
    """Yield the histograms of times and sizes."""
    from prometheus_client.core import HistogramMetricFamily

    seconds = HistogramMetricFamily(
        "dlslime_operation_seconds",
        "Time from the call of an operation to its end.",
        labels=["pid", "kind", "size"],
    )
    sizes = HistogramMetricFamily(
        "dlslime_operation_bytes", "Sizes of operations.", labels=["pid", "kind"]
    )
    for report in reports:
        for kind, numbers in report["operations"].items():
            labels = [str(report["pid"]), kind]
            for size, histogram in zip(histograms.SIZES, numbers["nanoseconds"], strict=True):
                _add(seconds, [*labels, size], histogram, SECONDS, 1e-9)
            _add(sizes, labels, numbers["bytes"], BYTES, 1)
    yield seconds
    yield sizes


def _add(
    family: Any,
    labels: list[str],
    histogram: histograms.Histogram,
    bounds: list[float],
    unit: float,
) -> None:
    counts = histograms.cumulative(histogram, [bound / unit for bound in bounds])
    buckets = [(f"{bound:g}", count) for bound, count in zip(bounds, counts, strict=True)]
    buckets.append(("+Inf", histogram["count"]))
    family.add_metric(labels, buckets=buckets, sum_value=histogram["sum"] * unit)


def _pairs(reports: list[job.Report]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    for report in reports:
        for group in report["groups"]:
            for peer in group["peers"]:
                place = (report["pid"], group["name"], group["rank"], peer["rank"], peer["route"])
                yield [str(value) for value in place], peer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `metrics`."""
    parser.add_argument("--port", type=int, help="serve until Ctrl-C; default: print once")
    parser.add_argument(
        "--address", default="127.0.0.1", help="to serve at (default: 127.0.0.1, this host alone)"
    )


def run(options: argparse.Namespace) -> int:
    """Print the metrics, or serve them; return 1 if prometheus-client is missing, else 0."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    except ImportError:
        text = "prometheus-client is missing: pip install 'dlslime-backend[metrics]'"
        console.print(Text(text, style="bold red"))
        return 1
    registry = CollectorRegistry()
    registry.register(JobCollector())
    if options.port is None:
        console.out(generate_latest(registry).decode(), highlight=False, end="")
        return 0
    try:
        _, thread = start_http_server(options.port, addr=options.address, registry=registry)
    except OSError as error:
        text = f"can't serve at {options.address}:{options.port}: {error.strerror}"
        console.print(Text(text, style="bold red"))
        return 1
    console.print(f"http://{options.address}:{options.port}/metrics")
    _until_interrupted(thread)
    return 0


def _until_interrupted(thread: threading.Thread) -> None:
    try:
        thread.join()
    except KeyboardInterrupt:
        return
