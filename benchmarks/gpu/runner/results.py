"""Findings of a run of gpu_check: saved after each step, in every folder asked for."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu.runner import questions

ROOT = Path(__file__).resolve().parents[3]


def without_places(text: str) -> str:
    """Leave out the folders of the project and of Python: results are read elsewhere."""
    for folder, name in ((sys.prefix, "PYTHON"), (str(ROOT), ".")):
        text = text.replace(folder, name)
    return text


class Results:
    """The JSON file and the log of a run.

    Attributes:
        scratch: a folder for single steps' files.
        found: the content of the JSON file; docs/cuda.md says what its fields mean.
    """

    def __init__(self, folders: list[Path], name: str, budget_s: float, command: str) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="gpu_check."))
        self._folders = folders
        self._name = name
        self.found: dict[str, Any] = {
            "command": command,
            "complete": False,
            "budget_s": budget_s,
            "seconds": 0.0,
            "machine": {},
            "steps": [],
            "answers": {},
            "figures": [],
            "questions": [],
        }
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.log").write_text("")
        self.save()

    @property
    def path(self) -> Path:
        """Return the JSON file's path in the first folder."""
        return self._folders[0] / f"{self._name}.json"

    def log(self, step: str, text: str) -> None:
        """Append a step's output to the log."""
        for folder in self._folders:
            with (folder / f"{self._name}.log").open("a", errors="replace") as file:
                file.write(f"== {step}\n{without_places(text).rstrip()}\n")

    def merge(self, step: str, findings: dict[str, Any]) -> None:
        """Take the findings of a step's programs: answers by name, figures, and the machine."""
        self.found["machine"].update(findings.get("machine", {}))
        self.found["answers"].update(findings.get("answers", {}))
        for figure in findings.get("figures", []):
            self.found["figures"].append({"step": step, **figure})

    def add(self, record: dict[str, Any], seconds: float) -> None:
        """Add a step's record, and save."""
        self.found["steps"].append(record)
        self.found["seconds"] = round(seconds, 1)
        self.save()

    def close(self) -> None:
        """Save, and remove single steps' files."""
        self.save()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def finish(self, seconds: float) -> None:
        """Note that the run is complete, and save."""
        self.found["complete"] = True
        self.found["seconds"] = round(seconds, 1)
        self.save()

    def save(self) -> None:
        """Write the JSON file: whole or not at all."""
        self.found["questions"] = questions.answered(self.found)
        text = json.dumps(self.found, indent=1, default=str) + "\n"
        text = without_places(text)
        for folder in self._folders:
            made = folder / f".{self._name}.json.new"
            made.write_text(text)
            made.rename(folder / f"{self._name}.json")
