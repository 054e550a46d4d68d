"""Lets the lab's tests, and ranks started by the tests, import modules of tests/python."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from paths import FOLDERS  # noqa: E402

sys.path.extend(folder for folder in FOLDERS if folder not in sys.path)
