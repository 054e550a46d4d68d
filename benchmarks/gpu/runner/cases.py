"""Runs the cases of a program each in a process of its own: a hang or crash loses a case only.

A program with cases is started as `PROGRAM` for all cases, and starts itself as `PROGRAM CASE` for
each. A case's answers go to the step's findings; "CASE.ended" says how a process ended badly.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from gpu.runner.findings import Findings

Case = Callable[[Findings], None]


def _ended(status: int | None, limit_s: float) -> str:
    if status is None:
        return f"stopped after {limit_s:g} s"
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"failed with status {status}"


def run_case(prefix: str, name: str, limit_s: float) -> bool:
    """Run a case of the program in a process; tell whether the process ended well."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, sys.argv[0], name])
    try:
        status: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # and the step's end ends its children
        status = None
    if status != 0:
        Findings(f"{prefix}{name}.").answer(ended=_ended(status, limit_s))
    print(f"   {name}: {time.monotonic() - begin:.1f} s", flush=True)
    return status == 0


def main(prefix: str, cases: Mapping[str, Case], limit_s: float) -> int:
    """Run all cases, or the case named on the command line; return the exit status.

    Inability of the machine is an answer; the status is 1 only if a case crashed, hung or raised.
    """
    if len(sys.argv) > 1:
        cases[sys.argv[1]](Findings(f"{prefix}{sys.argv[1]}."))
        return 0
    good = [run_case(prefix, name, limit_s) for name in cases]
    return 0 if all(good) else 1
