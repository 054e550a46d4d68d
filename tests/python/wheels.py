"""Wheels of other libraries, kept in build/wheels, for tests that use the libraries unmodified."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paths import ROOT

FOLDER = ROOT / "build" / "wheels"


def made(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name` of build/wheels, filled by `make` the first time."""
    folder = FOLDER / name
    if folder.is_dir():  # on a host of the lab the folder can't be written
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:  # a single process fills the folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
                fresh = Path(scratch) / "fresh"
                fresh.mkdir()
                make(fresh)
                fresh.rename(folder)  # all files, or none
    return folder


def pip(verb: str, options: Sequence[str], requirements: Sequence[str]) -> None:
    """Run pip for the packages without their dependencies; fail the test if pip fails."""
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--no-deps", *options]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(
            f"these tests need {', '.join(requirements)}, and pip can't get it:\n{done.stderr}",
            pytrace=False,
        )


def original_dlslime() -> Path:
    """Return a folder with the original DLSlime 0.1.23 of PyPI."""
    requirement = "dlslime==0.1.23"
    name = requirement.replace("==", "-")
    return made(name, lambda fresh: pip("install", ["--target", str(fresh)], [requirement]))


def python_files(
    folder: Path, requirement: str, sha256: str, wheel_for: Sequence[str], inside: Sequence[str]
) -> None:
    """Unpack the *.py of a wheel below the folders `inside`; fail if the wheel has another hash."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        options = [*wheel_for, "--only-binary=:all:", f"--dest={scratch}"]
        pip("download", options, [requirement])
        (path,) = Path(scratch).glob("*.whl")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != sha256:
            pytest.fail(f"{path.name} has SHA-256 {found}, not {sha256}", pytrace=False)
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py")]
            wheel.extractall(folder, [name for name in names if name.startswith(tuple(inside))])
