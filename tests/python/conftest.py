"""Ends the workers with the test session, and lets no test wait for a resolver or a compiler."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paths import FOLDERS

sys.path.extend(folder for folder in FOLDERS if folder not in sys.path)

import pool  # noqa: E402

# What takes longest: pytest-xdist begins with it, so that it isn't left over for one process.
_LONGEST = ("test_cuda.py", "test_gpu_check.py", "test_torch_suite.py")

# torch looks up the name of each address that connects to a store: seconds each time, where nobody
# answers. The C library reads this when a process first looks up a name.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest files first, in a process of pytest-xdist."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.name not in _LONGEST)


@pytest.fixture(scope="session")
def _fake_gpus() -> None:
    """What the GPUs that are none consist of is compiled: a minute, which is no test's time."""
    command = [sys.executable, "-c", "import fake_gpu; fake_gpu.use()"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True)
