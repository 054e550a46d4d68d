"""Where things are, and the folders that tests and their ranks import each other from."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
PROGRAMS = TESTS / "programs"
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "benchmarks"

# A function that ranks run is known by its module's name, which these folders have no two of.
FOLDERS = [
    str(folder)
    for folder in (TESTS, *sorted(TESTS.iterdir()))
    if folder == TESTS or (folder.is_dir() and any(folder.glob("test_*.py")))
]
