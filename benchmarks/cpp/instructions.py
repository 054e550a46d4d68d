#!/usr/bin/env python3
"""Count the instructions that the engine spends on an operation, by callgrind.

    python benchmarks/cpp/instructions.py                     # of this tree
    python benchmarks/cpp/instructions.py --against REVISION  # beside those of another commit

Counts hardly depend on what else the machine does. While a second thread copies the pieces of a
read, the waiting thread polls, more or less often: the least of several runs counts. A rank sends
to itself, so nothing waits for another process: what a route adds (a ring, a NIC) is not in the
counts. The aim is at most 3% more than the other commit. Needs valgrind, cmake and a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MOST_GROWTH = 0.03
RUNS = 7
# What is counted: arguments of the program, rounds, and the operations in a round.
CASES = {
    "send and recv of 8 B": (["send", "8"], 1000),
    "send and recv of 64 KiB": (["send", "65536"], 500),
    "read of 1,000 pieces": (["read", "1000"], 50),
}


def run(*command: str | Path) -> None:
    """Run a command; its output is shown if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command}:\n{done.stdout}{done.stderr}")


def build(tree: Path, folder: Path) -> Path:
    """Build the engine of `tree` as its own tests do, and the program; return its path."""
    run("cmake", "-S", tree / "tests/cpp", "-B", folder, "-DCMAKE_BUILD_TYPE=")
    run("cmake", "--build", folder, "--target", "dlslime", "-j", str(os.cpu_count()))
    shims = folder / "shims"
    for name in ("file_rendezvous.h", "test_transfer.h"):
        if not (tree / "tests/cpp/fakes/peers" / name).exists():  # before they had a folder
            (shims / "fakes/peers").mkdir(parents=True, exist_ok=True)
            (shims / "fakes/peers" / name).write_text(f'#include "fakes/{name}"\n')
    program = folder / "instructions"
    includes = [f"-I{path}" for path in (tree / "csrc", tree, tree / "tests/cpp", shims)]
    source = ROOT / "benchmarks/cpp/instructions.cpp"
    options = ["-std=c++20", "-O2", "-g1", "-DDLSLIME_HAVE_VERBS=1"]
    libraries = [folder / "libdlslime.a", "-lpthread", "-ldl", "-lrt"]
    run("c++", *options, *includes, source, *libraries, "-o", program)
    return program


def least(program: Path, arguments: list[str], rounds: int) -> float:
    """Return the least count of several runs."""
    return min(count(program, arguments, rounds) for _ in range(RUNS))


def count(program: Path, arguments: list[str], rounds: int) -> float:
    """Return the instructions of a round."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--toggle-collect=*countedRounds*",
            f"--callgrind-out-file={folder}/out",
            str(program),
            folder,
            *arguments,
            str(rounds),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{command}:\n{done.stdout}{done.stderr}")
    return int(found[1]) / rounds


def main() -> int:
    """Print a table; return 1 if a count has grown too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="REVISION", help="another commit of this repository")
    arguments = parser.parse_args()
    program = build(ROOT, ROOT / "build/instructions")
    other = None
    if arguments.against:
        tree = ROOT / "build" / f"tree-{arguments.against}"
        if not tree.exists():
            run("git", "-C", ROOT, "worktree", "add", "--detach", tree, arguments.against)
        other = build(tree, ROOT / "build" / f"instructions-{arguments.against}")
    grown = False
    for name, (how, rounds) in CASES.items():
        now = least(program, how, rounds)
        line = f"{name:28} {now:12,.0f}"
        if other is not None:
            before = least(other, how, rounds)
            line += f" {before:12,.0f} {now / before - 1:+8.1%}"
            grown |= now / before - 1 > MOST_GROWTH
        print(line, flush=True)
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
