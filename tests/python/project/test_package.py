"""The package has one version; extensions and engines of different builds refuse each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlslime_backend
from dlslime_backend._load import LIBRARIES, built_for
from harness import dlslime_only
from paths import ROOT

pytestmark = dlslime_only

LOAD = "import torch, dlslime_backend._load as load; print(load.extension().__file__)"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Copy the package into a folder; return the copy's lib/."""
    source = Path(dlslime_backend.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "include")
    shutil.copytree(source, tmp_path / "dlslime_backend", ignore=ignored)
    return tmp_path / "dlslime_backend" / "lib"


def load_from(lib: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = str(lib.parent.parent)
    return subprocess.run(
        [sys.executable, "-c", LOAD],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **env},
        cwd="/",
    )


def build_id() -> bytes:
    """Return the id in the engine's library."""
    text = (LIBRARIES / "libdlslime.so").read_bytes()
    found = re.search(rb"%s-[0-9a-f]{12}" % dlslime_backend.__version__.encode(), text)
    assert found
    return found[0]


def test_copy_loads(copied: Path) -> None:
    done = load_from(copied)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(copied))


def test_extension_refuses_an_engine_of_another_build(copied: Path) -> None:
    engine = copied / "libdlslime.so"
    engine.write_bytes(engine.read_bytes().replace(build_id(), b"9.9.9-000000000000"))
    failed = load_from(copied)
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert f"{engine} is of build 9.9.9-000000000000" in last
    assert f"is of build {build_id().decode()}, but" in last
    assert "install it again" in last


def test_library_path_does_not_bring_in_another_engine(copied: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "libdlslime.so").write_bytes(b"this is no shared object")
    done = load_from(copied, LD_LIBRARY_PATH=str(other))
    assert done.returncode == 0, done.stderr


def test_missing_extension_for_this_torch_is_told_with_those_that_there_are(copied: Path) -> None:
    major, minor = built_for()[0]
    (copied / f"torch_{major}_{minor}").rename(copied / "torch_2_99")
    failed = load_from(copied)
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert "was built for torch 2.99, but torch" in last
    assert "Install one of these versions of torch" in last


def test_source_tree_without_a_build_says_how_to_build(copied: Path) -> None:
    shutil.rmtree(copied)
    failed = load_from(copied)
    assert failed.returncode == 1
    assert "nothing is compiled in" in failed.stderr
    assert "pip install --no-build-isolation ." in failed.stderr


def test_citation_has_the_version_of_the_package() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {dlslime_backend.__version__}\n" in text


def test_project_file_takes_the_version_from_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version = \"", text, re.MULTILINE)
