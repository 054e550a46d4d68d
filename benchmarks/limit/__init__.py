"""The yardstick without torch: builds shm_limit.c and runs the program. Builds resolver.c, too."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent


def build(folder: Path) -> Path | None:
    """Compile the program into ``folder``; return None after showing an error."""
    return _compiled("no limit", HERE / "shm_limit.c", folder / "shm_limit")


def build_resolver(folder: Path) -> Path | None:
    """Compile the library that counts look-ups; return None after showing an error."""
    return _compiled("no look-ups", HERE / "resolver.c", folder / "resolver.so", "-shared", "-fPIC")


def _compiled(otherwise: str, source: Path, output: Path, *options: str) -> Path | None:
    command = ["cc", "-O2", "-std=gnu11", *options, str(source), "-o", str(output)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{otherwise}: {error} {getattr(error, 'stderr', '') or ''}".rstrip())
        return None
    return output


def one_way(
    program: Path, mode: str, size: int, count: int, fresh: bool, cores: Sequence[int]
) -> float | None:
    """Return the median one-way time in seconds; None if the machine does not permit the mode."""
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
