"""C++ programs: the headers of the package, find_package(dlslime), and the example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlslime_backend import __version__
from dlslime_backend._load import LIBRARIES
from harness import dlslime_only
from paths import EXAMPLES

pytestmark = dlslime_only
HEADERS = LIBRARIES / "include"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, check=False
    )


def configure(source: Path, build: Path) -> subprocess.CompletedProcess[str]:
    asked = run(sys.executable, "-m", "dlslime_backend", "cmake-dir")
    assert asked.returncode == 0, asked.stderr
    return run("cmake", "-S", source, "-B", build, f"-Ddlslime_DIR={asked.stdout.strip()}")


def test_example_is_found_by_cmake_and_runs(tmp_path: Path) -> None:
    configured = configure(EXAMPLES / "cpp", tmp_path)
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    done = run(tmp_path / "pair")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(done.stdout.splitlines())  # of two processes, in either order
    assert lines[::2] == ["message of 1 MiB: ok", "write of 1 MiB: ok"]
    assert lines[1].startswith("route: ")


@pytest.mark.parametrize(
    ("wanted", "found"), [(__version__, True), ("0.1", True), ("0.2", False), ("1.0", False)]
)
def test_version_of_another_minor_is_refused(tmp_path: Path, wanted: str, found: bool) -> None:
    lines = ["cmake_minimum_required(VERSION 3.18)", "project(other LANGUAGES NONE)"]
    lines.append(f"find_package(dlslime {wanted} CONFIG REQUIRED)")
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines))
    configured = configure(tmp_path, tmp_path / "build")
    assert (configured.returncode == 0) == found, configured.stderr


@pytest.mark.parametrize("name", ["engine", "endpoint", "hub"])
def test_each_header_is_complete_and_gives_no_warning(name: str) -> None:
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}"]
    header = HEADERS / "dlslime" / "engine" / f"{name}.h"
    done = run("c++", *flags, "-include", header, "-x", "c++", "/dev/null")
    assert done.returncode == 0, done.stderr
