"""Starts scripts under torchrun, and leaves nothing of them behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def torchrun(
    script: Path,
    arguments: Sequence[str],
    ranks: int,
    scratch: Path,
    *,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    deadline: float = 100,
) -> tuple[int | None, str]:
    """Runs a script on this host and waits for it.

    Args:
        script: the program.
        arguments: its command line.
        ranks: the number of processes.
        scratch: a folder for the ranks' temporary files, and for the output.
        options: further options of torchrun.
        env: variables to set.
        deadline: seconds until the launch and everything in it is killed.

    Returns:
        The exit status, None where the deadline ended it; and what all ranks wrote.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), *options, str(script), *arguments]
    # One thread per rank: the ranks share few cores with each other.
    variables = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)} | dict(env or {})
    # A file and not a pipe: a rank that outlives torchrun would hold a pipe open.
    log = scratch / "output.txt"
    with log.open("a") as output:
        launch = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            status = launch.wait(deadline)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_session(launch)
    return status, log.read_text(errors="replace")


def _kill_session(launch: subprocess.Popen) -> None:
    # torchrun starts each rank in a session of its own, but ends them when it is asked to end.
    if launch.poll() is None:
        launch.terminate()
        try:
            launch.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(launch.pid, signal.SIGKILL)
            launch.wait()
