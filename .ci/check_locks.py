#!/usr/bin/env python3
"""Check that functions under the engine's lock say so to clang's analysis.

A class of csrc/engine whose comment says "Under the engine's lock" is checked: each function
that may change an object says REQUIRES, unless its comment says "any thread". Clang then checks
the callers. Prints each function that does not say so; exits 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import check_classes

ROOT = Path(__file__).parent.parent
CLAIM = "nder the engine's lock"
FUNCTION = re.compile(r"[\w:<>,&*\s\[\]()=]*?[\s&*](\w+)\s*\(")
WORD = re.compile(r"\b(public|private|protected):")
NOT_OURS = re.compile(
    r"(?:template <[^{]*?> )?(static|friend|using|enum|struct|class)\b|.*\b(operator|delete)\b"
)
CONST = re.compile(r"\)\s*const\b")


def comment_above(text: str, at: int) -> str:
    """Return the comment of the lines above an index."""
    found: list[str] = []
    for line in reversed(text[:at].rstrip(" ").rstrip("\n").split("\n")):
        if not line.strip().startswith("//"):
            break
        found.insert(0, line.strip().removeprefix("//").strip())
    return " ".join(found)


def members(code: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the index and the head of each declaration between two indices."""
    start = at = begin
    parentheses = 0
    while at < end:
        character = code[at]
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if character in ";{" and parentheses == 0:
            head = WORD.sub(lambda match: " " * len(match[0]), code[start:at])
            yield start + len(head) - len(head.lstrip()), " ".join(head.split())
        if character == "{":
            at = check_classes.end_of_block(code, at)
        else:
            at += 1
        if character in ";{" and parentheses == 0:
            start = at


def changes(name: str, head: str) -> bool:
    """Say whether a class's declaration is of a function that may change the object."""
    function = FUNCTION.match(" " + head)
    if function is None or NOT_OURS.match(head) or CONST.search(head):
        return False
    return (
        function[1] not in (name, "GUARDED_BY") and head[0] not in ",:" and "=" not in function[0]
    )


def unsaid(text: str) -> Iterator[str]:
    """Yield the functions of a header that do not say what they require."""
    code = check_classes.without_texts(text)
    for match in check_classes.CLASS.finditer(code):
        line = code.rfind("\n", 0, match.start()) + 1
        if CLAIM not in comment_above(text, line):
            continue
        end = check_classes.end_of_block(code, match.end() - 1) - 1
        for at, head in members(code, match.end(), end):
            above = comment_above(text, text.rfind("\n", 0, at) + 1)
            if (
                changes(match[1], head)
                and "REQUIRES(" not in head
                and "any thread" not in above.lower()
            ):
                yield f"{match[1]}: {head}"


def main() -> int:
    """Check the project, or the tree named by the first argument; return the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = [
        f"{path.relative_to(root)}: {what}"
        for path in sorted((root / "csrc" / "engine").rglob("*.h"))
        for what in unsaid(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(found))
    if found:
        print('say REQUIRES(kEngineLock), or "Any thread." in the comment', file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
