"""The fake GPU of tests of CUDA tensors works as a GPU; dlslime refuses some of its features."""

import subprocess
import sys

import pytest

from harness import dlslime_only
from paths import PROGRAMS

PROGRAM = PROGRAMS / "cuda" / "fake_gpu_tensors.py"


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
def test_tensors_on_a_gpu_that_is_none() -> None:
    # A separate process, since the program changes torch.
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all right"
