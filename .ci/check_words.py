#!/usr/bin/env python3
"""Check that comments and documents are plain English.

Counts the share of pointing words, whose meaning a reader has to look for elsewhere, over all texts
of each kind in KINDS. Reports each sentence that continues at the next declaration, and each "who"
without a noun. `--worst` lists the files by share.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
POINTING_TEXT = """
    it its that this these those they them their one ones who whom whose whoever which what whatever
    there here such same other others another
"""
POINTING = frozenset(POINTING_TEXT.split())
MOST = 7.0  # percent
CODE = ("csrc", "torch_ext")
CHECKS = ("tests", "benchmarks")
SOURCES = {".h", ".c", ".cpp"}
KINDS = {  # where the texts are that are counted together, and the suffixes of their files
    "comments": (CODE, SOURCES),
    "comments of tests and benchmarks": (CHECKS, SOURCES),
    "comments and docstrings in Python": (("dlslime_backend", *CHECKS), {".py"}),
    "documents": (("README.md", "SECURITY.md", *CODE, "docs", *CHECKS), {".md"}),
}
TOKEN = re.compile(
    r'//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
PYTHON_TOKEN = re.compile(
    r'#(?P<line>[^\n]*)|"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
NOT_PROSE = re.compile(r"^\s*(namespace|NOLINT|clang-format|IWYU|noqa|type:|fmt:|!)|^\s*-+")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FENCE = re.compile(r"```.*?```|^    [^\n]*$|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
GOES_ON = re.compile(r"(,|\band|\bor)$")
INSTEAD = re.compile(r"\bin\s+place\s+of\b", re.IGNORECASE)
HEADLESS = re.compile(r"\b(whoever|(?:^|[.;:] )who)\b", re.IGNORECASE)


class Comment(NamedTuple):
    """A comment of one line or block, or a docstring; `before` is the code in front."""

    begin: int
    end: int
    before: str
    text: str


def comments(text: str, token: re.Pattern[str]) -> Iterator[Comment]:
    """Yield the comments of a source."""
    for match in token.finditer(text):
        groups = match.groupdict()
        body = groups["line"] if groups["line"] is not None else groups.get("block")
        if body is not None:
            begin, end = (text.count("\n", 0, at) + 1 for at in match.span())
            before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            yield Comment(begin, end, before, body)


def docstrings(text: str) -> Iterator[Comment]:
    """Yield the docstrings of Python."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield Comment(node.body[0].lineno, node.body[0].end_lineno or 0, "", docstring)


def joined(found: Iterable[Comment]) -> Iterator[tuple[int, str]]:
    """Yield the last line's number and the text of each comment; lines of a comment are joined."""
    texts: list[str] = []
    last = 0
    for comment in found:
        if NOT_PROSE.match(comment.text):
            continue
        if texts and (comment.begin != last + 1 or comment.before.strip()):
            yield last, " ".join(texts)
            texts = []
        texts += comment.text.split()
        last = comment.end
    if texts:
        yield last, " ".join(texts)


@functools.cache
def prose(path: Path) -> list[tuple[int, str]]:
    """Return (line, text) of the comments of a source, or of a document without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [(1, FENCE.sub(" ", text))]
    if path.suffix == ".py":
        return list(joined([*comments(text, PYTHON_TOKEN), *docstrings(text)]))
    return list(joined(comments(text, TOKEN)))


def files(kind: str) -> list[Path]:
    """Return the files with texts of a kind."""
    places, suffixes = KINDS[kind]
    tops = [ROOT / place for place in places]
    found = [path for top in tops for path in (top, *sorted(top.rglob("*")))]
    return [path for path in found if path.suffix in suffixes]


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
    counts = {kind: {path: count(path) for path in files(kind)} for kind in KINDS}
    every = {path: value for kind in KINDS for path, value in counts[kind].items()}
    if options.worst:
        for path, (words, pointing) in sorted(every.items(), key=lambda item: -item[1][1]):
            if words:
                print(f"{pointing:5} {100 * pointing / words:5.1f}% {path.relative_to(ROOT)}")
    found = [text for path in every for text in faults(path)]
    for kind, ours in counts.items():
        words, pointing = (sum(column) for column in zip(*ours.values(), strict=True))
        share = 100 * pointing / words
        print(f"{kind}: {share:.1f}% of {words} words point (at most {MOST:.0f}%)")
        if share > MOST:
            found.append(f"{kind}: too many pointing words (--worst lists the files)")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
