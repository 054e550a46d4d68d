"""A process for each rank and engine, so that no library disturbs another library's process.

With several engines each rank starts a process of its own program for each engine in turn, so that
polling threads of a library are gone when the next library is measured, and a crash loses no
figures of other libraries.
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

WRONG = 10  # exit statuses of a child process
MISSING = 3


@dataclass
class Outcome:
    """The outcome of an engine.

    Attributes:
        missing: the reason against using the engine here; empty if usable.
        failed: the bad end of the engine's process, if any.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""
    failed: str = ""


def tell(path: Path, rows: list[dict[str, Any]], missing: str) -> int:
    """Leave the results to the parent process; return the exit status."""
    path.write_text(json.dumps({"rows": rows, "missing": missing}))
    if missing:
        return MISSING
    return WRONG if any(not row["verified"] for row in rows) else 0


def run(name: str, meeting: StoreMeeting) -> Outcome:
    """Run the calling program with a single engine, at all ranks."""
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
    # The child uses the store's server of torchrun's agent, or of the job's rank 0, as the parent
    # does.
    return subprocess.Popen(command, env={**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "True"})


def _watched(process: subprocess.Popen[bytes], meeting: StoreMeeting, key: str) -> int:
    """Wait for the child's end; kill the child if another rank's has failed; report failures."""
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
