"""Runs programs of the original DLSlime's API, with memory of a GPU: some at a time.

    python benchmarks/gpu/runner/original.py

Each program has both ends in one process, or an end in each of two. The exit status is 1 if any
program fails, and the output of failed programs is shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.runner.launch import free_port

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests/python/programs/original"))

from catalogue import FOLDERS, path_of

AT_A_TIME = 4
SECONDS = 60.0
EXAMPLES = [
    "oldest_p2p",
    "post_rc_read",
    "post_rc_read_coroutine",
    "post_rc_write_with_imm_data",
    "post_send_recv",
    "post_send_recv_gdr",
    "keys_by_address",
    "today_rc_read",
    "today_rc_write_with_imm_data",
    "today_send_recv_gdr",
    "lmdeploy_calls",
]
# The names are found as by dlslime_backend.pth, which only an installed package has.
RUN = (
    "import runpy, sys; import _dlslime_provide; _dlslime_provide.begin(); "
    "sys.argv[:] = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def start(program: str, output: IO[str], *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start a process of a program."""
    path = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", RUN, path_of(program), "--device", "cuda", *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "DLSLIME_PROVIDE": "dlslime,slime", "PYTHONPATH": path, **more},
        text=True,
    )


def commands(program: str, processes: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return arguments and variables of each process of a program."""
    if program == "nvlink_ranks":
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        return [([], {**shared, "RANK": str(rank), "LOCAL_RANK": "0"}) for rank in range(2)]
    if processes == 1:
        return [([], {})]
    address = f"127.0.0.1:{free_port()}"
    return [(["--role", role, "--address", address], {}) for role in ("target", "initiator")]


def run(case: tuple[str, int]) -> bool:
    """Run a program to its end; tell whether the result was right."""
    program, processes = case
    with tempfile.TemporaryFile("w+") as output:
        started = [
            start(program, output, *arguments, **more)
            for arguments, more in commands(program, processes)
        ]
        try:
            right = not any(process.wait(SECONDS) for process in started)
        except subprocess.TimeoutExpired:
            right = False
        for process in started:
            process.kill()
        output.seek(0)
        text = output.read()
    print(f"{program}, {processes} processes: {'right' if right else 'FAILED'}", flush=True)
    if not right:
        print(text, flush=True)
    return right


def main() -> int:
    """Run all programs."""
    cases = [(program, processes) for program in EXAMPLES for processes in (1, 2)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return int(not all(pool.map(run, [*cases, ("nvlink_ranks", 2)])))


if __name__ == "__main__":
    sys.exit(main())
