"""RDMA devices of the host, from sysfs."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CLASS = "class/infiniband"
_ACTIVE = "ACTIVE"


def _read(path: Path, default: str = "") -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return default


def _names(sysfs_root: str = "/sys") -> list[str]:
    folder = Path(sysfs_root) / _CLASS
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def available_nic() -> list[str]:
    """Return the names of the host's RDMA devices, or ["auto"] without devices.

    Programs index the list even if their pair then takes another route.
    """
    return _names() or ["auto"]


def socket_id(device: str) -> int:
    """Return the NUMA node of a device, or 0 if the node is unknown."""
    found = _read(Path("/sys") / _CLASS / device / "device/numa_node", "0")
    return max(0, int(found))


def _port(folder: Path) -> dict[str, Any]:
    return {
        "port": int(folder.name),
        "state": _read(folder / "state").partition(": ")[2] or "UNKNOWN",
        "link_type": _read(folder / "link_layer") or "Unspecified",
    }


def _nic(name: str, sysfs_root: str) -> dict[str, Any]:
    folder = Path(sysfs_root) / _CLASS / name
    ports = [_port(port) for port in sorted((folder / "ports").glob("*"))]
    active = any(port["state"] == _ACTIVE for port in ports)
    device = folder / "device"
    return {
        "name": name,
        "health": "AVAILABLE" if active else "UNAVAILABLE",
        "numa_node": int(_read(device / "numa_node", "-1")),
        "pci_bus_id": device.resolve().name if device.exists() else "",
        "ports": ports,
    }


def discover_topology(
    preferred_device: str | None = None,
    ib_port: int = 1,
    preferred_link_type: str | None = None,
    sysfs_root: str = "/sys",
    devices: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the host's RDMA devices as a dict for JSON.

    Args:
        preferred_device: name of the device to list first.
        ib_port: not used.
        preferred_link_type: not used.
        sysfs_root: where sysfs is mounted.
        devices: names to list; None is all devices.
    """
    names = [name for name in _names(sysfs_root) if devices is None or name in devices]
    names.sort(key=lambda name: name != preferred_device)
    return {
        "schema_version": 1,
        "topology_epoch": int(time.time()),
        "host": {"hostname": socket.gethostname(), "address": "127.0.0.1"},
        "nics": [_nic(name, sysfs_root) for name in names],
        "accelerators": [],
        "memory_keys": [],
        "topology_backends": {
            "sysfs": "AVAILABLE" if names else "UNAVAILABLE",
            "cuda": "NOT_BUILT",
            "nvml": "NOT_BUILT",
        },
    }
