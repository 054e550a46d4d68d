"""Ends the workers with the test session, and lets no test wait for a resolver."""

import os
from collections.abc import Iterator

import pytest

import pool

# torch looks up the name of each address that connects to a store: seconds each time, where nobody
# answers. The C library reads this when a process first looks up a name.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close()
