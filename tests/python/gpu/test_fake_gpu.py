"""The GPU that tests of CUDA tensors have: that it is one, and what of it dlslime refuses yet."""

import subprocess
import sys

import pytest

from harness import dlslime_only
from paths import PROGRAMS

PROGRAM = PROGRAMS / "cuda" / "fake_gpu_tensors.py"


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
def test_tensors_on_a_gpu_that_is_none() -> None:
    # In a process of its own: it changes torch.
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all right"
