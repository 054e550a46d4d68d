#!/usr/bin/env python3
"""Check the includes between folders.

ARROWS is the architecture: for each folder of csrc/ and torch_ext/, the folders that its files may
include. Files may also include their own folder, and the folders of GROUND unless they are in
GROUND themselves. The arrows must not form a circle, and every arrow must be used in the project.

No file in csrc/ may include torch, Python or pybind11; no file at all may include the CUDA toolkit;
only csrc/transports/rdma may include the verbs headers. Prints each violation as FILE:LINE, and
exits 1 after any violation.
"""

from __future__ import annotations

import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

GROUND = (
    "csrc/base/library",
    "csrc/base/threads",
    "csrc/base",
    "csrc/base/memory",
    "csrc/base/crypto",
    "csrc/interface",
)
ARROWS = {
    "csrc/base/library": "",
    "csrc/base/threads": "",
    "csrc/base": "csrc/base/library csrc/base/threads",
    "csrc/base/memory": "csrc/base csrc/base/library csrc/base/threads",
    "csrc/base/crypto": "csrc/base",
    "csrc/interface": "csrc/base csrc/base/library csrc/base/memory csrc/base/threads",
    "csrc/cuda/driver": "",
    "csrc/cuda/copy": "csrc/cuda/driver",
    "csrc/cuda": "csrc/cuda/driver csrc/cuda/copy",
    "csrc/transports/common": "",
    "csrc/transports/gloo": "",
    "csrc/transports/loopback": "csrc/transports/common",
    "csrc/transports/shm": "csrc/transports/common",
    "csrc/transports/tcp": "",
    "csrc/transports/rdma/device": "",
    "csrc/transports/rdma/rail": "csrc/transports/rdma/device",
    "csrc/transports/rdma": """
        csrc/transports/common csrc/transports/rdma/device csrc/transports/rdma/rail""",
    "csrc/transports": """
        csrc/transports/gloo csrc/transports/loopback csrc/transports/rdma csrc/transports/shm
        csrc/transports/tcp csrc/cuda csrc/cuda/driver""",
    "csrc/engine/record": "",
    "csrc/engine/progress": "csrc/engine/record",
    "csrc/engine/bootstrap": "csrc/engine/progress",
    "csrc/engine/wire": "",
    "csrc/engine/gpu": "csrc/engine/progress csrc/engine/wire",
    "csrc/engine/two_sided": "csrc/engine/progress csrc/engine/gpu csrc/engine/wire",
    "csrc/engine/one_sided": """
        csrc/engine/progress csrc/engine/bootstrap csrc/engine/gpu csrc/engine/two_sided
        csrc/engine/wire""",
    "csrc/engine/channel": """
        csrc/engine/progress csrc/engine/gpu csrc/engine/two_sided csrc/engine/one_sided""",
    "csrc/engine/peer": """
        csrc/engine/progress csrc/engine/bootstrap csrc/engine/gpu csrc/engine/two_sided
        csrc/engine/wire csrc/engine/channel""",
    "csrc/engine/state": """
        csrc/engine/progress csrc/engine/bootstrap csrc/engine/one_sided csrc/engine/peer
        csrc/transports""",
    "csrc/engine/inspect": """
        csrc/engine/record csrc/engine/bootstrap csrc/engine/peer csrc/engine/state""",
    "csrc/engine/connect": """
        csrc/engine/progress csrc/engine/bootstrap csrc/engine/peer csrc/engine/state
        csrc/engine/inspect csrc/transports""",
    "csrc/engine/core": """
        csrc/engine/record csrc/engine/progress csrc/engine/bootstrap csrc/engine/peer
        csrc/engine/state csrc/engine/connect""",
    "csrc/engine": """
        csrc/engine/record csrc/engine/progress csrc/engine/bootstrap csrc/engine/one_sided
        csrc/engine/peer csrc/engine/core csrc/transports""",
    "torch_ext/support": "csrc/engine csrc/engine/record",
    "torch_ext/store": "torch_ext/support",
    "torch_ext/c10d": "csrc/engine torch_ext/store torch_ext/support",
    "torch_ext/one_sided": "csrc/engine torch_ext/c10d torch_ext/support",
    "torch_ext/bind": "csrc/engine torch_ext/c10d torch_ext/one_sided torch_ext/support",
}

SOURCE_SUFFIXES = {".h", ".hpp", ".cpp", ".cc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$|^pyconfig\.h$")
CUDA = re.compile(r"^(cuda|cuda_\w+|cudnn|nccl|nvml|nvrtc)\.(h|hpp)$|^(cuda|cub|thrust)/")
VERBS = re.compile(r"^(infiniband|rdma)/")
VERBS_FOLDER = "csrc/transports/rdma"


def allowed_from(folder: str) -> set[str]:
    """Return the folders that a folder in ARROWS may include."""
    ground = () if folder in GROUND else GROUND
    return {folder, *ground, *ARROWS[folder].split()}


def folder_of(path: str) -> str:
    """Return the folder of a file given by its path from the root."""
    return path.rpartition("/")[0]


def system_violation(source: str, name: str) -> str | None:
    """Return why a file may not include a system header, or None if the file may."""
    if CUDA.match(name):
        return "the CUDA toolkit is not needed to build (libcuda is opened at run time)"
    if source.startswith("csrc/") and TORCH.match(name):
        return "csrc/ is built without torch and Python"
    if VERBS.match(name) and not source.startswith(f"{VERBS_FOLDER}/"):
        return f"only {VERBS_FOLDER} may include the verbs headers"
    return None


def resolve(root: Path, source: Path, name: str) -> str | None:
    """Return the project's file of a quoted include, as a path from the root, or None."""
    for folder in (source.parent, root / "csrc", root):
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def sources_in(root: Path) -> Iterator[Path]:
    """Yield every source and header of csrc/ and torch_ext/."""
    for folder in ("csrc", "torch_ext"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                yield path


def includes_of(root: Path, path: Path) -> Iterator[tuple[int, str, str | None, bool]]:
    """Yield line number, name, the project's file or None, and whether the name is quoted."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := INCLUDE.match(line):
            target = resolve(root, path, match[1]) if match[1] else None
            yield number, match[1] or match[2], target, bool(match[1])


def violations_in(root: Path, path: Path) -> Iterator[str]:
    """Yield a text for each include of a file against the arrows or the rules above."""
    source = path.relative_to(root).as_posix()
    folder = folder_of(source)
    if folder not in ARROWS:
        yield f"{source}:1: its folder is not in ARROWS of .ci/check_layers.py"
        return
    for number, name, target, quoted in includes_of(root, path):
        if target is not None:
            wrong = f"{folder} may not include {folder_of(target)}"
            reason = None if folder_of(target) in allowed_from(folder) else wrong
        else:
            reason = system_violation(source, name)
            if reason is None and quoted:
                reason = "no such file in the project (system headers go in <>)"
        if reason is not None:
            yield f"{source}:{number}: includes {name}: {reason}"


def check(root: Path) -> list[str]:
    """Return every violation in the tree below `root`."""
    root = root.resolve()
    return [text for path in sources_in(root) for text in violations_in(root, path)]


def circle() -> list[str]:
    """Return a list with a text about a circle in ARROWS, or an empty list."""
    try:
        graphlib.TopologicalSorter({name: row.split() for name, row in ARROWS.items()}).prepare()
    except graphlib.CycleError as error:
        return [f"the arrows go in a circle: {' -> '.join(error.args[1])}"]
    return []


def unused_arrows(root: Path) -> list[str]:
    """Return a text about each arrow without an include in the tree."""
    root = root.resolve()
    taken = {
        (folder_of(path.relative_to(root).as_posix()), folder_of(target))
        for path in sources_in(root)
        for _, _, target, _ in includes_of(root, path)
        if target is not None
    }
    return [
        f"ARROWS: no file of {folder} includes {target}; take the arrow away"
        for folder, row in ARROWS.items()
        for target in row.split()
        if (folder, target) not in taken
    ]


def main() -> int:
    """Check the project (or the tree named by the first argument); return the exit status."""
    own = len(sys.argv) < 2
    root = Path(__file__).parent.parent if own else Path(sys.argv[1])
    found = circle() + check(root) + (unused_arrows(root) if own else [])
    for text in found:
        print(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
