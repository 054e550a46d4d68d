"""One process per rank and engine: what one library does to its process, no other one meets.

With several engines each rank starts a process of its own program for one after the other, so that
threads of a library that poll are gone when the next one is measured, and one that crashes takes no
other figures with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pages.meeting import StoreMeeting

WRONG = 10  # exit statuses of such a process
MISSING = 3


@dataclass
class Outcome:
    """What came of one engine.

    Attributes:
        missing: why it can't be used here; empty if it can.
        failed: how its process ended, if not well.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""
    failed: str = ""


def tell(path: Path, rows: list[dict[str, Any]], missing: str) -> int:
    """Leaves to the process that started this one what it has found; returns the exit status."""
    path.write_text(json.dumps({"rows": rows, "missing": missing}))
    if missing:
        return MISSING
    return WRONG if any(not row["verified"] for row in rows) else 0


def run(name: str, meeting: StoreMeeting) -> Outcome:
    """Runs this program with one engine only, at all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        status = _watched(_started(name, path), meeting, f"failed/{name}")
        known = {0, WRONG, MISSING}
        statuses = meeting.share(status)
        bad = [f"rank {n}: {_how(s)}" for n, s in enumerate(statuses) if s not in known]
        found = json.loads(path.read_text()) if path.exists() else {"rows": [], "missing": ""}
    return Outcome(found["rows"], found["missing"], next(iter(bad), ""))


def _started(name: str, path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, sys.argv[0], *sys.argv[1:]]
    command += ["--transfer-engine", name, "--rows", str(path)]
    # The store's server, which torchrun's agent or this job's rank 0 has, stays the same.
    return subprocess.Popen(command, env={**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "True"})


def _watched(process: subprocess.Popen[bytes], meeting: StoreMeeting, key: str) -> int:
    """Waits for its end; ends it if that of another rank has failed, and tells of its failure."""
    killed = False
    while process.poll() is None:
        time.sleep(0.1)
        if not killed and meeting.store.check([key]):
            process.kill()
            killed = True
    status = process.returncode
    if killed:
        return 0
    if status not in (0, WRONG, MISSING):
        meeting.store.set(key, "1")
    return status


def _how(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
