"""What a process holds, and its node's NICs for it: the same before and after, or it leaks."""

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
    """What this process holds, and the node's NICs for all processes, that could leak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = rdma_resources()
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    found["threads"] = len(os.listdir("/proc/self/task"))
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found[_RESIDENT] = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
    return found


def countable(holding: dict[str, int]) -> dict[str, int]:
    """What of it must be the same, and not only about the same."""
    return {what: number for what, number in holding.items() if what != _RESIDENT}


def settled(wanted: dict[str, int], seconds: float = 20) -> dict[str, int]:
    """What this process holds, as soon as it is what it was, and in any case after some time."""
    deadline = time.monotonic() + seconds
    while True:
        found = held()
        if countable(found) == countable(wanted) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def expect_the_same(holdings: dict[str, dict[str, int]]) -> None:
    """Raises AssertionError unless "after" is as "before", and "alone again" as "alone"."""
    for before, after in (("before", "after"), ("alone", "alone again")):
        assert countable(holdings[after]) == countable(holdings[before]), after


def grown_kib(holdings: dict[str, dict[str, int]]) -> int:
    """How much larger the process is "after" than "before"."""
    return holdings["after"][_RESIDENT] - holdings["before"][_RESIDENT]
