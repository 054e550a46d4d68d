"""Waiting for what nobody tells of."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 20, what: str = "") -> None:
    """Returns once `condition()` is true; raises AssertionError if it stays false."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what or f"not so after {seconds} s"
        time.sleep(0.001)
