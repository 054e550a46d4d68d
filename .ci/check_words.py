#!/usr/bin/env python3
"""Check that comments and documents are plain English.

Counts, over all comments of csrc/ and torch_ext/ and over all documents, the share of pointing
words, whose meaning a reader has to look for elsewhere. Reports each sentence that continues at the
next declaration, and each "who" without a noun. `--worst` lists the files by share.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
POINTING_TEXT = """
    it its that this these those they them their one ones who whom whose whoever which what whatever
    there here such same other others another
"""
POINTING = frozenset(POINTING_TEXT.split())
MOST = 7.0  # percent
CODE_FOLDERS = ("csrc", "torch_ext")
TOKEN = re.compile(
    r'//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
NOT_PROSE = re.compile(r"^\s*(namespace|NOLINT|clang-format|IWYU)|^\s*-+")
FENCE = re.compile(r"```.*?```|^    [^\n]*$|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
GOES_ON = re.compile(r"(,|\band|\bor)$")
INSTEAD = re.compile(r"\bin\s+place\s+of\b", re.IGNORECASE)
HEADLESS = re.compile(r"\b(whoever|(?:^|[.;:] )who)\b", re.IGNORECASE)


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the last line's number and the text of each comment; lines of a comment are joined."""
    joined: list[str] = []
    last = 0
    for match in TOKEN.finditer(text):
        body = match["line"] if match["line"] is not None else match["block"]
        if body is None or NOT_PROSE.match(body):
            continue
        begin = text.count("\n", 0, match.start()) + 1
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if joined and (begin != last + 1 or before.strip()):
            yield last, " ".join(joined)
            joined = []
        joined.append(body.strip())
        last = text.count("\n", 0, match.end()) + 1
    if joined:
        yield last, " ".join(joined)


def prose(path: Path) -> list[tuple[int, str]]:
    """Return (line, text) of the comments of a source, or of a document without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [(1, FENCE.sub(" ", text))]
    return list(comments(text))


def files() -> list[Path]:
    """Return the sources and documents that are counted."""
    sources = [
        path
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".h", ".cpp"}
    ]
    folders = (*CODE_FOLDERS, "docs", "tests", "benchmarks")
    documents = [ROOT / "README.md", ROOT / "SECURITY.md"]
    documents += sorted(path for folder in folders for path in (ROOT / folder).rglob("*.md"))
    return sources + documents


def count(path: Path) -> tuple[int, int]:
    """Return the number of words of a file, and the number of pointing words."""
    words = [word.lower() for _, text in prose(path) for word in WORD.findall(text)]
    return len(words), sum(word in POINTING for word in words)


def faults(path: Path) -> Iterator[str]:
    """Yield a text about each sentence that spans declarations or has a "who" without a noun."""
    for line, text in prose(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        if INSTEAD.search(text):
            yield f"{where}: 'in place of' where 'instead of' is meant"
        if path.suffix == ".md":
            continue
        if GOES_ON.search(text):
            yield f"{where}: the sentence goes on at the next declaration: {text[-40:]!r}"
        if HEADLESS.search(text):
            yield f"{where}: who is that: {text[:60]!r}"


def main() -> int:
    """Check the project; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", action="store_true", help="list the files by their share")
    options = parser.parse_args()
    counts = {path: count(path) for path in files()}
    if options.worst:
        for path, (words, pointing) in sorted(counts.items(), key=lambda item: -item[1][1]):
            if words:
                print(f"{pointing:5} {100 * pointing / words:5.1f}% {path.relative_to(ROOT)}")
    found = [text for path in counts for text in faults(path)]
    for kind, suffixes in (("comments", {".h", ".cpp"}), ("documents", {".md"})):
        ours = [value for path, value in counts.items() if path.suffix in suffixes]
        words, pointing = (sum(column) for column in zip(*ours, strict=True))
        share = 100 * pointing / words
        print(f"{kind}: {share:.1f}% of {words} words point (at most {MOST:.0f}%)")
        if share > MOST:
            found.append(f"{kind}: too many pointing words (--worst lists the files)")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
