"""The results of a step's program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FINDINGS = "DLSLIME_GPU_CHECK_FINDINGS"  # the variable that names the file


class Findings:
    """The results of a step's program, saved at each change, in case the step is stopped."""

    def __init__(self, prefix: str = "") -> None:
        self._path = os.environ.get(FINDINGS)
        self._prefix = prefix
        self.all: dict[str, Any] = {"answers": {}, "figures": [], "machine": {}}
        if self._path and Path(self._path).exists():  # left by another program of the step
            self.all.update(json.loads(Path(self._path).read_text()))

    def answer(self, **values: Any) -> None:
        """Set fields of the results' "answers"."""
        for name, value in values.items():
            self.all["answers"][self._prefix + name] = value
            print(f"{self._prefix}{name}: {value}", flush=True)
        self._save()

    def figure(self, **entry: Any) -> None:
        """Add an entry to the results' "figures"."""
        self.all["figures"].append(entry)
        self._save()

    def machine(self, **values: Any) -> None:
        """Set fields of the results' "machine"."""
        self.all["machine"].update(values)
        self._save()

    def _save(self) -> None:
        if self._path:
            made = Path(f"{self._path}.new")
            made.write_text(json.dumps(self.all, default=str))
            made.rename(self._path)
