"""Ends the workers with the test session."""

from collections.abc import Iterator

import pytest

import pool


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close()
