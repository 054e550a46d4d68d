#!/usr/bin/env python3
"""Print the figures by which the tree is compared with others (docs/contributing.md).

Counts C++ of csrc and torch_ext, except where a line says otherwise. Lines are those of files;
functions are those with a body, outside and inside of classes.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import check_classes
import check_words

ROOT = Path(__file__).parent.parent
LONG = 40  # lines of a function
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b", re.MULTILINE)
BODY = re.compile(r"^( *)[^\s#/][^;{}]*\([^;{}]*\)[^;{}=]*\{\n(.*?)^\1\}", re.MULTILINE | re.DOTALL)
CONTROL = re.compile(
    r"^\s*(if|for|while|switch|else|do|catch|return|namespace|struct|class|enum)\b"
)
LOCK = re.compile(r"\b(GUARDED_BY|REQUIRES)\(")
THREAD = re.compile(r"\b(claimThis|assertHeld)\(")


def sources(*tops: str) -> list[Path]:
    """Return the C++ files below the folders."""
    return [
        path
        for top in tops
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in {".h", ".cpp"}
    ]


def lines(path: Path) -> int:
    """Return the lines of a file."""
    return path.read_text(encoding="utf-8").count("\n")


def total(paths: Iterable[Path]) -> int:
    """Return the lines of all files."""
    return sum(map(lines, paths))


def functions(path: Path) -> list[int]:
    """Return the lines of each function."""
    code = check_classes.without_texts(path.read_text(encoding="utf-8"))
    return [
        match[0].count("\n") + 1 for match in BODY.finditer(code) if not CONTROL.match(match[0])
    ]


def pulled_in(header: str) -> set[Path]:
    """Return the headers of ours that a header includes, directly or not."""
    found: set[Path] = set()
    waiting = [ROOT / "csrc" / header]
    while waiting:
        for name in INCLUDE.findall(waiting.pop().read_text(encoding="utf-8")):
            path = ROOT / "csrc" / name
            if path.exists() and path not in found:
                found.add(path)
                waiting.append(path)
    return found


def occurrences(pattern: re.Pattern[str], paths: Iterable[Path]) -> int:
    """Return how often a pattern occurs in all files."""
    return sum(len(pattern.findall(path.read_text(encoding="utf-8"))) for path in paths)


def main() -> None:
    """Print a line for each figure."""
    ours = sources("csrc", "torch_ext")
    engine = sources("csrc/engine")
    sizes = [lines(path) for path in ours]
    bodies = [size for path in ours for size in functions(path)]
    fullest, most = Counter(path.parent for path in ours).most_common(1)[0]
    face = pulled_in("engine/engine.h")
    python = {top: sorted((ROOT / top).rglob("*.py")) for top in ("tests", "dlslime_backend")}
    tests = [*sources("tests"), *python["tests"]]
    product = [*ours, *python["dlslime_backend"]]
    of_classes, virtuals = check_classes.count(ROOT)
    words = [check_words.count(path) for path in check_words.files("comments")]
    largest, size = of_classes.most_common(1)[0]
    connection = virtuals["csrc/interface/Connection"]
    rows = {
        "files, kLOC": f"{len(ours)}, {sum(sizes) / 1000:.1f}",
        "of these the engine": f"{len(engine)}, {total(engine) / 1000:.1f}",
        "median and largest file, lines": f"{statistics.median(sizes):.0f}, {max(sizes)}",
        f"functions of more than {LONG} lines": (
            f"{100 * sum(size > LONG for size in bodies) / len(bodies):.1f}% of {len(bodies)}"
        ),
        "largest class, lines": f"{largest.rsplit('/', 1)[-1]} {size}",
        f"classes of more than {check_classes.MOST_LINES} lines": str(
            sum(size > check_classes.MOST_LINES for size in of_classes.values())
        ),
        "#if per kLOC": f"{1000 * occurrences(CONDITION, ours) / sum(sizes):.1f}",
        "test : code, lines of C++ and Python": f"{total(tests) / total(product):.2f}",
        "fullest folder, files of C++": f"{fullest.relative_to(ROOT)} {most}",
        "headers that engine/engine.h pulls in (lines)": f"{len(face)} ({total(face):,})",
        "virtuals of Connection": str(connection),
        "pointing words in comments": (
            f"{100 * sum(row[1] for row in words) / sum(row[0] for row in words):.1f}%"
        ),
        "lock annotations": str(occurrences(LOCK, ours)),
        "run-time asserts of threads and the lock": str(occurrences(THREAD, ours)),
    }
    for name, value in rows.items():
        print(f"{name:46} {value}")


if __name__ == "__main__":
    main()
