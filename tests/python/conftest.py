"""Ends the workers with the test session, and makes tests independent of resolvers, compilers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paths import FOLDERS

sys.path.extend(folder for folder in FOLDERS if folder not in sys.path)

import pool  # noqa: E402

# The slowest files: pytest-xdist starts with the slowest, so that no process ends up with them
# alone.
_LONGEST = ("test_cuda.py", "test_gpu_check.py", "test_torch_suite.py")

# torch looks up the name of each address that connects to a store: seconds each time if no resolver
# answers. The C library reads the variable when a process first looks up a name.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the slowest files first in the processes of pytest-xdist."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.name not in _LONGEST)


@pytest.fixture(scope="session")
def _fake_gpus() -> None:
    """Compile the libraries of the fake GPUs, so that no test waits a minute for compilers."""
    command = [sys.executable, "-c", "import fake_gpu; fake_gpu.use()"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True)
