"""Runs the cases of a program each in a process of its own: one that hangs or crashes loses itself.

A program that uses it is started as `PROGRAM` for all its cases, and starts itself as
`PROGRAM CASE` for each. What a case answers goes to the step's findings; "CASE.ended" says how its
process ended where that was not well.
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
    """Run one case of this program in a process; tell whether it ended well."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, sys.argv[0], name])
    try:
        status: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # and what it started is ended with the step
        status = None
    if status != 0:
        Findings(f"{prefix}{name}.").answer(ended=_ended(status, limit_s))
    print(f"   {name}: {time.monotonic() - begin:.1f} s", flush=True)
    return status == 0


def main(prefix: str, cases: Mapping[str, Case], limit_s: float) -> int:
    """Run all cases, or the one that the command line names; return the exit status.

    A case that the machine can't do is an answer; the status is that of the program: 1 where a
    case crashed, hung or raised.
    """
    if len(sys.argv) > 1:
        cases[sys.argv[1]](Findings(f"{prefix}{sys.argv[1]}."))
        return 0
    good = [run_case(prefix, name, limit_s) for name in cases]
    return 0 if all(good) else 1
