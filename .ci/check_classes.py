#!/usr/bin/env python3
"""Check that a class fits in one head.

An interface has at most 12 virtual functions of its own, destructors apart, and a class at most 400
lines: those of its definition and of its functions, in whatever files they are. Prints each
violation; exits 1 if there is one. `--largest` lists the twenty largest classes.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_VIRTUALS = 12
MOST_LINES = 400
FOLDERS = ("csrc", "torch_ext")
COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)
CLASS = re.compile(
    r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?\s*(?::[^;{}()]*)?\{"
)
VIRTUAL = re.compile(r"\bvirtual\b(?!\s*~)")
FUNCTION = re.compile(r"^(?![ \t}#])[^;{}()]*?((?:\w+::)+)~?\w+\s*\(", re.MULTILINE)


def without_texts(text: str) -> str:
    """Return the code with comments and texts blanked, of the same lines."""
    return COMMENT_OR_TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def end_of_block(code: str, begin: int) -> int:
    """Return the index behind the brace that closes the first one at or after `begin`."""
    depth = 0
    for index in range(code.index("{", begin), len(code)):
        depth += {"{": 1, "}": -1}.get(code[index], 0)
        if depth == 0:
            return index + 1
    return len(code)


def classes(code: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, body without its inner classes, and lines of each class of a file."""
    for match in CLASS.finditer(code):
        if code[: match.start()].rstrip().endswith("enum"):
            continue
        body = code[match.end() - 1 : end_of_block(code, match.end() - 1)]
        own, at = "", 1
        for inner in CLASS.finditer(body, 1):
            if inner.start() >= at:
                own += body[at : inner.start()]
                at = end_of_block(body, inner.end() - 1)
        yield match[1], own + body[at:], body.count("\n") + 1


def functions(code: str) -> Iterator[tuple[str, int]]:
    """Yield the class and the lines of each function that is defined outside of its class."""
    for match in FUNCTION.finditer(code):
        brace, semicolon = code.find("{", match.end()), code.find(";", match.end())
        if brace < 0 or 0 <= semicolon < brace:
            continue
        yield (
            match[1].split("::")[0],
            code.count("\n", match.start(), end_of_block(code, brace)) + 1,
        )


def count(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the lines and the virtual functions of each class, by folder and name."""
    lines: Counter[str] = Counter()
    virtuals: Counter[str] = Counter()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp"}:
                continue
            code = without_texts(path.read_text(encoding="utf-8"))
            where = path.parent.relative_to(root).as_posix()
            for name, body, size in classes(code):
                lines[f"{where}/{name}"] += size
                virtuals[f"{where}/{name}"] += len(VIRTUAL.findall(body))
            for name, size in functions(code):
                lines[f"{where}/{name}"] += size
    return lines, virtuals


def main() -> int:
    """Check the project, or the tree named by the first argument; return the exit status."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--largest"]
    lines, virtuals = count(Path(arguments[0]) if arguments else ROOT)
    if "--largest" in sys.argv:
        for name, size in lines.most_common(20):
            print(f"{size:5} {name}")
    found = [
        f"{name}: {size} lines over all its files; at most {MOST_LINES}"
        for name, size in lines.items()
        if size > MOST_LINES
    ]
    found += [
        f"{name}: {number} virtual functions; at most {MOST_VIRTUALS} (make abilities of the rest)"
        for name, number in virtuals.items()
        if number > MOST_VIRTUALS
    ]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
