"""Waiting for conditions without a notification."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 20, what: str = "") -> None:
    """Return once `condition()` is true; raise AssertionError after the time-out."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what or f"not so after {seconds} s"
        time.sleep(0.001)
