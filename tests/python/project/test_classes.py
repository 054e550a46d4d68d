"""The class check (.ci/check_classes.py) passes here, and finds classes too large to remember."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paths import ROOT

SCRIPT = ROOT / ".ci" / "check_classes.py"


def check(root: Path) -> tuple[int, list[str]]:
    command = [sys.executable, str(SCRIPT), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines()


def write(root: Path, name: str, text: str) -> None:
    path = root / "csrc" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def interface(functions: int) -> str:
    body = "".join(f"  virtual int f{n}() = 0; // virtual\n" for n in range(functions))
    return f"class Face {{\n public:\n  virtual ~Face() = default;\n{body}}};\n"


def test_project_has_no_problem() -> None:
    assert check(ROOT) == (0, [""])


def test_interface_has_at_most_twelve_virtual_functions(tmp_path: Path) -> None:
    write(tmp_path, "a/face.h", interface(12))
    assert check(tmp_path)[0] == 0
    write(tmp_path, "a/face.h", interface(13))
    status, (line,) = check(tmp_path)
    assert status == 1
    assert line.startswith("csrc/a/Face: 13 virtual functions; at most 12")


def test_virtual_functions_of_an_inner_class_are_its_own(tmp_path: Path) -> None:
    outer = interface(10).replace("};\n", interface(10).replace("Face", "Inner") + "};\n")
    write(tmp_path, "a/face.h", outer)
    assert check(tmp_path)[0] == 0


def test_lines_of_a_class_are_counted_over_its_files(tmp_path: Path) -> None:
    body = "\n".join(f"  ++n{n};" for n in range(150))
    write(tmp_path, "a/thing.h", "class Thing {\n" + "  int n;\n" * 50 + "};\n")
    write(tmp_path, "a/thing.cpp", f"void Thing::first() {{\n{body}\n}}\n")
    write(tmp_path, "a/other.cpp", f"void Other::second() {{\n{body}\n}}\n")
    assert check(tmp_path)[0] == 0
    write(tmp_path, "a/thing_more.cpp", f"int Thing::second(int a) const {{\n{body}\n{body}\n}}\n")
    status, (line,) = check(tmp_path)
    assert status == 1
    assert line.startswith("csrc/a/Thing: 506 lines over all its files; at most 400")
