"""Ends the workers with the test session, and lets no test wait for a resolver or a compiler."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pool

# torch looks up the name of each address that connects to a store: seconds each time, where nobody
# answers. The C library reads this when a process first looks up a name.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture(scope="session")
def _fake_gpus() -> None:
    """What the GPUs that are none consist of is compiled: a minute, which is no test's time."""
    command = [sys.executable, "-c", "import fake_gpu; fake_gpu.use()"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True)
