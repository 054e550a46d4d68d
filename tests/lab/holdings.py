"""Resources of a process, also in its node's NICs: equal before and after, or the process leaks."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from pathlib import Path

from faults import rdma_resources

_RESIDENT = "resident KiB"


def held() -> dict[str, int]:
    """Count the resources of the process, and of all processes in the node's NICs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = rdma_resources()
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    found["threads"] = len(os.listdir("/proc/self/task"))
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found[_RESIDENT] = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
    return found


def countable(holding: dict[str, int]) -> dict[str, int]:
    """Return the resources that must be exactly equal, not only about equal."""
    return {what: number for what, number in holding.items() if what != _RESIDENT}


def settled(wanted: dict[str, int], seconds: float = 20) -> dict[str, int]:
    """Count the resources, once equal to `wanted` or after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = held()
        if countable(found) == countable(wanted) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def expect_the_same(holdings: dict[str, dict[str, int]]) -> None:
    """Raise AssertionError unless "after" is as "before", and "alone again" as "alone"."""
    for before, after in (("before", "after"), ("alone", "alone again")):
        assert countable(holdings[after]) == countable(holdings[before]), after


def grown_kib(holdings: dict[str, dict[str, int]]) -> int:
    """Return the growth of the process between "before" and "after"."""
    return holdings["after"][_RESIDENT] - holdings["before"][_RESIDENT]
