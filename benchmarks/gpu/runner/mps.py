"""Runs a command under NVIDIA's MPS, by which the processes on one GPU need not take turns.

    python benchmarks/gpu/runner/mps.py COMMAND...

Without MPS two ranks on one GPU wait for each other's time slice, some 200 us, at each message. The
daemon is the program's own, in a folder of its own, and ends with the program. Exit status: the
command's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

CONTROL = "nvidia-cuda-mps-control"
QUIT_S = 5.0


def main() -> int:
    """Start the daemon, run the command, and end the daemon."""
    if shutil.which(CONTROL) is None:
        print(f"{CONTROL} is not found: nothing is measured")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        here = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([CONTROL, "-d"], env=here, check=True)
        try:
            return subprocess.run(sys.argv[1:], env=here, check=False).returncode
        finally:
            subprocess.run(
                [CONTROL], input="quit\n", text=True, env=here, check=False, timeout=QUIT_S
            )


if __name__ == "__main__":
    sys.exit(main())
