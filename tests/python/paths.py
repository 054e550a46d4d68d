"""Paths of the project, and the folders from which tests and their ranks import modules."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
PROGRAMS = TESTS / "programs"
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "benchmarks"

# A function run by ranks is found by the name of its module, so module names are unique in these
# folders.
FOLDERS = [
    str(folder)
    for folder in (TESTS, *sorted(TESTS.iterdir()))
    if folder == TESTS or (folder.is_dir() and any(folder.glob("test_*.py")))
]
