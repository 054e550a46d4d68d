"""The original's counters (DLSLIME_OBS=1): operations of endpoints, and registered memory."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from dlslime_backend.compat.dlslime.core.futures import FAILURES

if TYPE_CHECKING:
    from dlslime_backend.compat.dlslime.core.assignments import Parts
    from dlslime_backend.compat.dlslime.core.regions import Regions

_OPERATIONS = ("read", "write", "write_with_imm", "send", "recv", "imm_recv")
_SWEEP_AT = 4096  # operations pending in the counters, before ended operations are removed


class _Counters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: weakref.WeakSet[Regions] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        self._pending: list[tuple[str, Any, int]] = []
        self._assigns = self._batches = self._submitted = 0
        self._completed = self._failed_bytes = self._errors = 0

    def note_regions(self, regions: Regions) -> None:
        self._regions.add(regions)

    def note(self, name: str, transfer: Any, pieces: int, nbytes: int) -> None:
        with self._lock:
            self._batches += 1
            self._assigns += pieces
            self._submitted += nbytes
            self._pending.append((name, transfer, nbytes))
            if len(self._pending) % _SWEEP_AT == 0:
                self._sweep()

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            self._sweep()
            names = [name for name, _, _ in self._pending]
            regions = list(self._regions)
            count, nbytes = (sum(f(each) for each in regions) for f in (_count, _nbytes))
            return {
                "assign_total": self._assigns,
                "batch_total": self._batches,
                "completed_bytes_total": self._completed,
                "error_total": self._errors,
                "failed_bytes_total": self._failed_bytes,
                "mr_bytes": nbytes,
                "mr_count": count,
                "pending_by_op": {name: names.count(name) for name in _OPERATIONS},
                "pending_ops": len(names),
                "submitted_bytes_total": self._submitted,
                "sys_mr_bytes": 0,
                "sys_mr_count": 0,
                "user_mr_bytes": nbytes,
                "user_mr_count": count,
            }

    def _sweep(self) -> None:
        pending = []
        for name, transfer, nbytes in self._pending:
            if not transfer.done():
                pending.append((name, transfer, nbytes))
                continue
            try:
                transfer.wait(0)
                self._completed += nbytes or transfer.nbytes
            except FAILURES:
                self._errors += 1
                self._failed_bytes += nbytes
        self._pending = pending


def _count(regions: Regions) -> int:
    return regions.count()


def _nbytes(regions: Regions) -> int:
    return regions.nbytes()


_counters = _Counters()
_enabled = os.environ.get("DLSLIME_OBS") == "1"  # read once, as in the original


def obs_enabled() -> bool:
    """Return whether operations are counted: DLSLIME_OBS=1 at import."""
    return _enabled


def obs_snapshot() -> dict[str, Any]:
    """Return the counters of operations and of registered memory.

    "nics" is always empty: traffic is not counted by NIC.
    """
    if not obs_enabled():
        return {"enabled": False}
    return {"enabled": True, "nics": [], "summary": _counters.snapshot()}


def obs_reset_for_test() -> None:
    """Set the counters of operations to 0."""
    _counters.reset()


def note_regions(regions: Regions) -> None:
    """Count the memory registered in a table, as long as the table exists."""
    _counters.note_regions(regions)


def lengths_of(pieces: Any) -> list[int]:
    """Return the length of each piece, in bytes."""
    if isinstance(pieces, list):
        return [length for _, _, length in pieces]
    return [int(length) for length in pieces[2]]


def noted(name: str, transfer: Any, parts: Parts | None = None) -> Any:
    """Count an operation, if operations are counted; return the operation.

    Args:
        name: the counter, such as "read".
        transfer: the operation.
        parts: pieces of a transfer; None for a message.
    """
    if obs_enabled():
        lengths = [length for _, _, pieces in parts or [] for length in lengths_of(pieces)]
        _counters.note(name, transfer, len(lengths) or 1, sum(lengths))
    return transfer
