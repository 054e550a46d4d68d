"""The folder check (.ci/check_folders.py) passes here, and finds crowded or undescribed folders."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from paths import ROOT

SCRIPT = ROOT / ".ci" / "check_folders.py"


def problems(names: list[str]) -> list[str]:
    spec = importlib.util.spec_from_file_location("check_folders", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.problems(names)


def test_project_has_no_problem() -> None:
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_headers_and_their_sources_are_one_unit_and_documents_are_none() -> None:
    units = [f"tests/cpp/unit{n}.{suffix}" for n in range(16) for suffix in ("h", "cpp")]
    assert problems([*units, "tests/cpp/README.md", "tests/cpp/more/one.cpp"]) == []
    (crowded,) = problems([*units, "tests/cpp/unit16.h"])
    assert crowded.startswith("tests/cpp: 17 units; at most 16")


def test_folder_of_the_engine_has_a_readme() -> None:
    (silent,) = problems(["csrc/new/thing.h", "csrc/old/thing.h", "csrc/old/README.md"])
    assert silent.startswith("csrc/new: has no README.md")
