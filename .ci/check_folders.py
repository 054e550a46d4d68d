#!/usr/bin/env python3
"""Check that a folder has at most 16 units, and, for C++, a README.md.

A unit is a header with its source, or a module, counted by the name without suffix. Prints each
folder with more units or without a README.md, and exits 1 after any.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path, PurePosixPath

MOST_UNITS = 16
CODE = {".h", ".hpp", ".cpp", ".c", ".cu", ".py", ".pyi"}
NEED_README = ("csrc/", "torch_ext/")


def files_of(root: Path) -> list[str]:
    """Return the files known to git, and the files that git would add, as paths from the root."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.splitlines() if (root / name).is_file()]


def problems(names: list[str]) -> list[str]:
    """Return a text about each folder with too many units, or without a README.md."""
    units = defaultdict(set)
    for name in map(PurePosixPath, names):
        if name.suffix in CODE:
            units[name.parent.as_posix()].add(name.stem)
    crowded = [
        f"{folder}: {len(members)} units; at most {MOST_UNITS} (cut it into folders)"
        for folder, members in sorted(units.items())
        if len(members) > MOST_UNITS
    ]
    silent = [
        f"{folder}: has no README.md that says what lives here"
        for folder in sorted(units)
        if folder.startswith(NEED_README) and f"{folder}/README.md" not in names
    ]
    return crowded + silent


def main() -> int:
    """Check the project (or the tree named by the first argument); return the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    found = problems(files_of(root))
    for text in found:
        print(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
