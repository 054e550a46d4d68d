"""What a node of the lab does to its network, and what its NIC has counted."""

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
    """Does this to every packet that the node sends by these cables; see tc-netem(8)."""
    for cable in cables:
        _tc("replace", cable, "netem", *faults)
    try:
        yield
    finally:
        for cable in cables:
            _tc("del", cable)


def netem_drops() -> int:
    """How many packets the node has dropped since `netem` began."""
    command = ["tc", "-s", "-j", "qdisc", "show"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sum(qdisc["drops"] for qdisc in json.loads(shown) if qdisc["kind"] == "netem")


def set_link(cable: str, state: str) -> None:
    """Pulls a cable out of this node ("down") or puts it in ("up")."""
    subprocess.run(["ip", "link", "set", cable, state], check=True)


def usual_address(cable: str, node: int) -> str:
    """The address that a node's init has given this end of a cable."""
    return f"10.{9 + CABLES.index(cable)}.0.{node + 1}"


def set_address(cable: str, address: str) -> None:
    """Gives this end of a cable another address, from which its NIC takes its GID."""
    show = ["ip", "-4", "-j", "addr", "show", "dev", cable]
    shown = json.loads(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
    before = [entry["local"] for device in shown for entry in device["addr_info"]]
    if before == [address]:
        return
    for old in before:  # with the first one of a network all others of it go, too
        subprocess.run(["ip", "addr", "del", f"{old}/24", "dev", cable], check=False)
    subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", cable], check=True)


def heal(rank: int, size: int) -> None:
    """Takes away what a world that failed, and was killed, has left on this rank's node."""
    for cable in CABLES:
        _tc("del", cable, check=False)
        set_link(cable, "up")
        set_address(cable, usual_address(cable, rank))


def nic_counter(name: str, nic: str = "rxe0") -> int:
    """One of the counters that a NIC's driver keeps."""
    return int(Path(_NICS, nic, "ports/1/hw_counters", name).read_text(encoding="ascii"))


def nic_counters() -> Counter[str]:
    """All of them, summed over the NICs."""
    found: Counter[str] = Counter()
    for path in _NICS.glob("*/ports/1/hw_counters/*"):
        found[path.name] += int(path.read_text(encoding="ascii"))
    return found


def packets_received() -> Counter[str]:
    """How many packets each NIC has received."""
    return Counter({nic.name: nic_counter("rcvd_pkts", nic.name) for nic in _NICS.iterdir()})


def _shown(*words: str) -> list[dict[str, Any]]:
    command = ["rdma", "-j", "resource", "show", *words]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(shown)


def rdma_resources() -> dict[str, int]:
    """What the drivers hold for the host's processes: queue pairs, memory regions, ..."""
    found = {
        kind: sum(nic.get(kind, 0) for nic in _shown()) for kind in ("ctx", "pd", "cq", "qp", "mr")
    }
    found["registered bytes"] = sum(int(region["mrlen"]) for region in _shown("mr"))
    return found
