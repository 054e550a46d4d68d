"""docs/configuration.md names every environment variable of the project."""

from __future__ import annotations

import re
import subprocess

from paths import ROOT

VARIABLE = re.compile(r"\bDLSLIME_[A-Z][A-Z0-9_]*\b")
MACROS = {
    "DLSLIME_API",
    "DLSLIME_BUILD_ID",
    "DLSLIME_CHECK_THREADS",
    "DLSLIME_HAVE_VERBS",
    "DLSLIME_THREAD_SAFETY",
    "DLSLIME_TORCH_HAS_SUSPEND",
    "DLSLIME_TORCH_VERSION",
}
OF_GPU_CHECK = "DLSLIME_GPU_CHECK_"
DOCUMENT = ROOT / "docs" / "configuration.md"


def used() -> set[str]:
    """Return the names in all files of git, except documents and results."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if name and not name.endswith((".md", ".json"))]
    texts = [(ROOT / name).read_bytes().decode(errors="ignore") for name in names]
    return {name for text in texts for name in VARIABLE.findall(text)}


def test_every_variable_is_documented() -> None:
    documented = set(VARIABLE.findall(DOCUMENT.read_text()))
    unknown = {name for name in used() - documented - MACROS if not name.startswith(OF_GPU_CHECK)}
    assert unknown == set()


def test_no_variable_is_documented_that_nothing_reads() -> None:
    documented = set(VARIABLE.findall(DOCUMENT.read_text()))
    assert {name for name in documented - used() if not name.endswith("_")} == set()
