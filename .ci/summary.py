#!/usr/bin/env python3
"""Sum up test results, and compare the skipped tests with the expected skips.

    .ci/summary.py SKIPS RESULT.xml...

Each RESULT is a JUnit file (of ctest or pytest); a missing file counts as a failed test. SKIPS has
lines "COUNT REASON": at most COUNT tests may be skipped with a reason in which the regular
expression REASON is found. A skip without a matching line, or beyond its COUNT, is an error, so
that no test is skipped unnoticed. Fewer skips are allowed, as on a machine with more hardware. The
last line is "N passed, N failed, N skipped"; exits 1 if a test failed, a skip was not expected, or
no test passed.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Result(NamedTuple):
    """One test of one result file."""

    name: str
    outcome: str
    text: str


def read_results(path: Path) -> Iterator[Result]:
    """Yield the tests of one JUnit file."""
    if not path.is_file():
        yield Result(path.stem, "failed", f"{path.name} was not written: its stage did not finish")
        return
    for case in ET.parse(path).getroot().iter("testcase"):
        # ctest repeats the name as the class; pytest's class is the module.
        parts = dict.fromkeys([case.get("classname", ""), case.get("name", "")])
        name = f"{path.stem}: {' '.join(filter(None, parts))}"
        skipped = case.find("skipped")
        broken = [case.find(kind) for kind in ("failure", "error")]
        if any(element is not None for element in broken) or case.get("status") == "fail":
            yield Result(name, "failed", "")
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            # pytest has the reason in an attribute, gtest in the output recorded by ctest.
            reason = skipped.get("message", "") if skipped is not None else ""
            yield Result(name, "skipped", f"{reason} {case.findtext('system-out') or ''}".strip())
        else:
            yield Result(name, "passed", "")


def unexpected_skips(skipped: list[Result], path: Path) -> Iterator[str]:
    """Yield a text for each skip that the list of expected skips does not allow."""
    allowed: list[tuple[str, int]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        if line.strip() and not line.startswith("#"):
            count, reason = line.split(maxsplit=1)
            allowed.append((reason, int(count)))
    seen: Counter[str] = Counter()
    for result in skipped:
        reason = next((reason for reason, _ in allowed if re.search(reason, result.text)), None)
        if reason is None:
            yield f"{result.name}: skipped, and {path.name} has no such reason: {result.text}"
        else:
            seen[reason] += 1
    for reason, count in allowed:
        if seen[reason] > count:
            yield f'{seen[reason]} tests skipped because of "{reason}": {path.name} expects {count}'


def main() -> int:
    """Read the files, print what is wrong and the sum, return the exit status."""
    results = [result for name in sys.argv[2:] for result in read_results(Path(name))]
    counts = Counter(result.outcome for result in results)
    skipped = [result for result in results if result.outcome == "skipped"]
    wrong = list(unexpected_skips(skipped, Path(sys.argv[1])))
    for result in results:
        if result.outcome == "failed":
            print(f"failed: {result.name} {result.text}".rstrip())
    for text in wrong:
        print(f"unexpected skip: {text}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or wrong or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
