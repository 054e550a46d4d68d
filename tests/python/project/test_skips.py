"""tests/README.md says how many tests are skipped against Gloo."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
COLLECT = """
import pytest

class Counter:
    def pytest_collection_finish(self, session):
        skipped = [item for item in session.items if self.reason(item).startswith("states what")]
        print("skipped:", len(skipped))

    def reason(self, item):
        marks = (mark for mark in item.iter_markers("skipif") if mark.args[0])
        return next((mark.kwargs["reason"] for mark in marks), "")

raise SystemExit(pytest.main(["--collect-only", "-qq", "tests/python"], plugins=[Counter()]))
"""


def test_readme_counts_the_tests_that_state_what_dlslime_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        cwd=TESTS.parent,
        env={**os.environ, "DLSLIME_TEST_BACKEND": "gloo"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^skipped: (\d+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout[-2000:] + done.stderr
    assert f"| 0 | {int(found[1]):,} |" in (TESTS / "README.md").read_text()
