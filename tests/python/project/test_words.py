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


def test_comments_and_docstrings_of_python_are_counted(words: ModuleType, tmp_path: Path) -> None:
    text = (
        "#!/usr/bin/env that\n"
        '"""It sends."""\n'
        "def those():  # noqa: that\n"
        '    r"""Return that."""\n'
        '    it = "# which"  # Bytes.\n'
        '    return """It sends that."""\n'
    )
    assert words.count(written(tmp_path, "a.py", text)) == (5, 2)


def test_texts_of_tests_and_benchmarks_are_counted(words: ModuleType, tmp_path: Path) -> None:
    sources, documents = ["tests/cpp/b.cpp", "benchmarks/c.c"], ["README.md", "SECURITY.md"]
    for name in ["csrc/a.h", *sources, "tests/d.py", *documents, "tests/e.md"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    kinds = [
        [str(path.relative_to(tmp_path)) for path in words.files(kind)] for kind in words.KINDS
    ]
    assert kinds == [["csrc/a.h"], sources, ["tests/d.py"], [*documents, "tests/e.md"]]


def test_each_kind_has_a_limit_of_its_own(
    words: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["check_words.py"])
    (tmp_path / "csrc").mkdir()
    (tmp_path / "tests").mkdir()
    written(tmp_path, "csrc/a.h", "// Sends a message.\n" * 100)
    written(tmp_path, "tests/b.py", "# Sends a message.\n")
    for document in ("README.md", "SECURITY.md"):
        written(tmp_path, document, "Sends a message.\n")
    written(tmp_path, "tests/a.cpp", "// Sends a message.\n")
    assert words.main() == 0
    words.prose.cache_clear()
    written(tmp_path, "tests/a.cpp", "// Sends it.\n")
    assert words.main() == 1
    assert "comments of tests and benchmarks: too many pointing words" in capsys.readouterr().out


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


def test_comment_of_python_that_goes_on_at_the_next_line_of_code_is_found(
    words: ModuleType, tmp_path: Path
) -> None:
    text = '"""Bytes, or\nmore."""\na = 1  # sent,\nb = 2  # and not sent\n# Bytes,\n# and more.\n'
    (found,) = words.faults(written(tmp_path, "a.py", text))
    assert found.startswith("a.py:3: the sentence goes on at the next declaration")


@pytest.mark.parametrize("text", ["// Whoever has it.\n", "// Who waits sleeps.\n"])
def test_who_without_a_head_is_found(words: ModuleType, tmp_path: Path, text: str) -> None:
    (found,) = words.faults(written(tmp_path, "a.h", text))
    assert found.startswith("a.h:1: who is that")


IN_PLACE_OF = {
    "a.h": "// A copy in\n// place of a pull.\n",
    "a.md": "A copy in\nplace of a pull.\n",
    "a.py": '"""A copy in\nplace of a pull.\n"""\n',
}


@pytest.mark.parametrize("name", IN_PLACE_OF)
def test_in_place_of_is_found(words: ModuleType, tmp_path: Path, name: str) -> None:
    (found,) = words.faults(written(tmp_path, name, IN_PLACE_OF[name]))
    assert found.startswith(f"{name}:")
    assert "'instead of' is meant" in found
