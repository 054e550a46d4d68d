"""Copies what C++ programs need: the headers of the public face, and files for find_package()."""

import re
from pathlib import Path

from package.native import HERE, ROOT, version

# The headers that C++ programs include; those that they include come along.
FACE = ["engine/engine.h", "engine/endpoint.h", "engine/hub.h", "base/library/build_id.h"]
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def headers() -> list[str]:
    """Return the headers of the face and all that they include, as paths below csrc/."""
    found: set[str] = set()
    waiting = list(FACE)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _INCLUDE.findall((ROOT / "csrc" / name).read_text())
    return sorted(found)


def install(folder: Path) -> list[Path]:
    """Write headers and CMake's files below `folder`, and return the paths relative to it.

    The headers become <dlslime/engine/engine.h> and so on, in the includes of each other, too.
    """
    texts = {
        Path("include", "dlslime", name): _INCLUDE.sub(
            r'#include "dlslime/\1"', (ROOT / "csrc" / name).read_text()
        )
        for name in headers()
    }
    for path in sorted(HERE.glob("*.cmake.in")):
        texts[Path("cmake", path.stem)] = path.read_text().replace("@VERSION@", version())
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return list(texts)
