"""Starts scripts under torchrun, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nodes


def torchrun(
    script: Path,
    arguments: Sequence[str],
    ranks: int,
    scratch: Path,
    *,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    deadline: float = 300,
) -> tuple[int | None, str]:
    """Run a script on this host, or on both hosts of a lab, and wait for the end.

    Args:
        script: the program.
        arguments: the script's command line.
        ranks: number of processes.
        scratch: folder for the ranks' temporary files, and for the output.
        options: further options of torchrun.
        env: variables to set.
        deadline: seconds until all processes of the launch are killed.

    Returns:
        The exit status, or None at the deadline; and the output of all ranks.
    """
    where, theirs = _placement(ranks)
    tail = [*options, str(script), *arguments]
    # One thread per rank: the ranks share few cores.
    variables = {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)} | dict(env or {})
    beside = nodes.Launch([*theirs, *tail], variables, deadline) if theirs else None
    # A file and not a pipe: a rank that outlives torchrun would hold a pipe open.
    log = scratch / "output.txt"
    with log.open("a") as output:
        launch = subprocess.Popen(
            [*where, *tail],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
        )
        try:
            status = launch.wait(deadline)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_session(launch)
    written = log.read_text(errors="replace")
    if beside is None:
        return status, written
    their_status, their_output = beside.result()
    late = status is None or their_status is None
    return None if late else status or their_status, written + their_output


def _placement(ranks: int) -> tuple[list[str], list[str]]:
    """Return the beginning of torchrun's command line on this node, and on the other if any."""
    command = [sys.executable, "-m", "torch.distributed.run"]
    if nodes.COUNT == 1 or ranks < nodes.COUNT:
        return [*command, "--standalone", "--nproc-per-node", str(ranks)], []
    command += ["--nnodes", str(nodes.COUNT), "--nproc-per-node", str(ranks // nodes.COUNT)]
    command += ["--master-addr", nodes.ADDRESS, "--master-port", str(nodes.free_port())]
    return [*command, "--node-rank", "0"], [*command, "--node-rank", "1"]


def _kill_session(launch: subprocess.Popen) -> None:
    # torchrun starts each rank in a session of its own, but ends the ranks when asked to end.
    if launch.poll() is None:
        launch.terminate()
        try:
            launch.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(launch.pid, signal.SIGKILL)
            launch.wait()
