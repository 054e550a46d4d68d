"""The word check (.ci/check_words.py) passes here, and finds sentences that are hard to follow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paths import ROOT

SCRIPT = ROOT / ".ci" / "check_words.py"


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_project_has_no_problem() -> None:
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_comments_are_counted_and_code_is_not(words: ModuleType, tmp_path: Path) -> None:
    text = '// It sends that.\nint it = 1; /* Bytes. */\nconst char* those = "// which";\n'
    assert words.count(written(tmp_path, "a.h", text)) == (4, 2)


def test_documents_are_counted_without_code(words: ModuleType, tmp_path: Path) -> None:
    text = (
        "It sends `that`.\n\n```\nit that\n```\n\n    it that\n\nMore [words](it/that.md) here.\n"
    )
    assert words.count(written(tmp_path, "a.md", text)) == (5, 2)


def test_sentence_that_goes_on_at_the_next_declaration_is_found(
    words: ModuleType, tmp_path: Path
) -> None:
    text = "int a; // bytes that were sent,\nint b; // and those that were not\n"
    (found,) = words.faults(written(tmp_path, "a.h", text))
    assert found.startswith("a.h:1: the sentence goes on at the next declaration")
    assert list(words.faults(written(tmp_path, "b.h", "// Bytes,\n// and more.\nint a;\n"))) == []


@pytest.mark.parametrize("text", ["// Whoever has it.\n", "// Who waits sleeps.\n"])
def test_who_without_a_head_is_found(words: ModuleType, tmp_path: Path, text: str) -> None:
    (found,) = words.faults(written(tmp_path, "a.h", text))
    assert found.startswith("a.h:1: who is that")


@pytest.mark.parametrize("name", ["a.h", "a.md"])
def test_in_place_of_is_found(words: ModuleType, tmp_path: Path, name: str) -> None:
    text = (
        "// A copy in\n// place of a pull.\n" if name == "a.h" else "A copy in\nplace of a pull.\n"
    )
    (found,) = words.faults(written(tmp_path, name, text))
    assert found.startswith(f"{name}:")
    assert "'instead of' is meant" in found
