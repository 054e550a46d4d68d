#!/usr/bin/env python3
"""Check who includes whom.

The arrows, each read "may include" (every layer also includes itself):

    torch_ext -> csrc/engine -> csrc/core <- csrc/shm, csrc/gloo, ... (a folder is a transport)
    csrc/engine/transports.* -> every transport: the one place that names them
    torch_ext -> csrc/gloo/carrier.h: the interface through which torch lends Gloo to the engine

Nothing in csrc/ includes torch, Python or pybind11; nothing at all includes the CUDA toolkit; only
csrc/rdma includes the verbs headers. Prints each violation as FILE:LINE; exits 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE_SUFFIXES = {".h", ".hpp", ".cpp", ".cc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$|^pyconfig\.h$")
CUDA = re.compile(r"^(cuda|cuda_\w+|cudnn|nccl|nvml|nvrtc)\.(h|hpp)$|^(cuda|cub|thrust)/")
VERBS = re.compile(r"^(infiniband|rdma)/")
CARRIER = "csrc/gloo/carrier.h"


def layer_of(path: str) -> str:
    """Return the layer, "csrc/core" or "torch_ext", of a file given by its path from the root."""
    parts = path.split("/")
    if parts[0] == "csrc" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def may_include(source: str, target: str) -> bool:
    """Tell whether one of the project's files may include another, both paths from the root."""
    from_layer, to_layer = layer_of(source), layer_of(target)
    if from_layer == to_layer:
        return True
    if from_layer == "csrc/core":
        return False
    if from_layer == "csrc/engine":
        names_transports = Path(source).stem == "transports"
        return to_layer == "csrc/core" or (names_transports and to_layer.startswith("csrc/"))
    if from_layer == "torch_ext":
        return to_layer in ("csrc/engine", "csrc/core") or target == CARRIER
    return from_layer.startswith("csrc/") and to_layer == "csrc/core"


def system_violation(source: str, name: str) -> str | None:
    """Say why a file may not include a system header, or return None if it may."""
    if CUDA.match(name):
        return "the CUDA toolkit is not needed to build (libcuda is opened at run time)"
    if source.startswith("csrc/") and TORCH.match(name):
        return "csrc/ is built without torch and Python"
    if VERBS.match(name) and layer_of(source) != "csrc/rdma":
        return "only csrc/rdma may include the verbs headers"
    return None


def resolve(root: Path, source: Path, name: str) -> str | None:
    """Find the project's file that a quoted include means, as a path from the root, or None."""
    for folder in (source.parent, root / "csrc", root):
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def violations_in(root: Path, path: Path) -> Iterator[str]:
    """Yield one text for each include of the file that goes against the arrows."""
    source = path.relative_to(root).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match[1] or match[2]
        target = resolve(root, path, name) if match[1] else None
        if target is not None:
            allowed = may_include(source, target)
            wrong = f"{layer_of(source)} may not include {layer_of(target)}"
            reason = None if allowed else wrong
        else:
            reason = system_violation(source, name)
            if reason is None and match[1]:
                reason = "no such file in the project (system headers go in <>)"
        if reason is not None:
            yield f"{source}:{number}: includes {name}: {reason}"


def check(root: Path) -> list[str]:
    """Return every violation in the tree below `root`."""
    root = root.resolve()
    return [
        text
        for folder in ("csrc", "torch_ext")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SOURCE_SUFFIXES
        for text in violations_in(root, path)
    ]


def main() -> int:
    """Check the project (or the tree named by the first argument); return the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    found = check(root)
    for text in found:
        print(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
