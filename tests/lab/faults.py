"""Faults that a node of the lab makes in its network, and counters of its NICs."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CABLES = ("vec0", "vec1")
_NICS = Path("/sys/class/infiniband")


def _tc(action: str, cable: str, *words: str, check: bool = True) -> None:
    subprocess.run(["tc", "qdisc", action, "dev", cable, "root", *words], check=check)


@contextmanager
def netem(*faults: str, cables: Sequence[str] = ("vec0",)) -> Iterator[None]:
    """Apply faults to packets sent by the node over the cables, for a while; see tc-netem(8)."""
    for cable in cables:
        _tc("replace", cable, "netem", *faults)
    try:
        yield
    finally:
        for cable in cables:
            _tc("del", cable)


def netem_drops() -> int:
    """Return the number of packets dropped by the node since `netem` began."""
    command = ["tc", "-s", "-j", "qdisc", "show"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sum(qdisc["drops"] for qdisc in json.loads(shown) if qdisc["kind"] == "netem")


def set_link(cable: str, state: str) -> None:
    """Pull a cable out of the node ("down") or put the cable in ("up")."""
    subprocess.run(["ip", "link", "set", cable, state], check=True)


def usual_address(cable: str, node: int) -> str:
    """Return the address of a node's end of a cable, as set by the node's init."""
    return f"10.{9 + CABLES.index(cable)}.0.{node + 1}"


def set_address(cable: str, address: str) -> None:
    """Give the node's end of a cable another address; the NIC derives its GID from the address."""
    show = ["ip", "-4", "-j", "addr", "show", "dev", cable]
    shown = json.loads(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
    before = [entry["local"] for device in shown for entry in device["addr_info"]]
    if before == [address]:
        return
    for old in before:  # removing the first address of a network removes the others, too
        subprocess.run(["ip", "addr", "del", f"{old}/24", "dev", cable], check=False)
    subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", cable], check=True)


def heal(rank: int, size: int) -> None:
    """Remove the faults left on the rank's node by a world that failed, and was killed."""
    for cable in CABLES:
        _tc("del", cable, check=False)
        set_link(cable, "up")
        set_address(cable, usual_address(cable, rank))


def nic_counter(name: str, nic: str = "rxe0") -> int:
    """Return a counter of a NIC's driver."""
    return int(Path(_NICS, nic, "ports/1/hw_counters", name).read_text(encoding="ascii"))


def nic_counters() -> Counter[str]:
    """Return all counters of the drivers, summed over the NICs."""
    found: Counter[str] = Counter()
    for path in _NICS.glob("*/ports/1/hw_counters/*"):
        found[path.name] += int(path.read_text(encoding="ascii"))
    return found


def packets_received() -> Counter[str]:
    """Return the number of packets received by each NIC."""
    return Counter({nic.name: nic_counter("rcvd_pkts", nic.name) for nic in _NICS.iterdir()})


def _shown(*words: str) -> list[dict[str, Any]]:
    command = ["rdma", "-j", "resource", "show", *words]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(shown)


def rdma_resources() -> dict[str, int]:
    """Return the drivers' objects for processes of the host: queue pairs, memory regions, ..."""
    found = {
        kind: sum(nic.get(kind, 0) for nic in _shown()) for kind in ("ctx", "pd", "cq", "qp", "mr")
    }
    found["registered bytes"] = sum(int(region["mrlen"]) for region in _shown("mr"))
    return found
