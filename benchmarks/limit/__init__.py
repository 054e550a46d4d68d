"""The yardstick without torch: builds shm_limit.c and runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("shm_limit.c")


def build(folder: Path) -> Path | None:
    """Compiles the program into ``folder``; None, with the compiler's words shown, if it can't."""
    program = folder / "shm_limit"
    try:
        subprocess.run(
            ["cc", "-O2", "-std=gnu11", str(SOURCE), "-o", str(program)],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no limit: {error} {getattr(error, 'stderr', '') or ''}".rstrip())
        return None
    return program


def one_way(
    program: Path, mode: str, size: int, count: int, fresh: bool, cores: Sequence[int]
) -> float | None:
    """Median one-way time in seconds; None where this machine does not permit the mode."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # inherited by the program
    command = [str(program), mode, str(size), str(count), "fresh" if fresh else "still"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        os.sched_setaffinity(0, mine)
    return json.loads(done.stdout)["median_us"] * 1e-6
