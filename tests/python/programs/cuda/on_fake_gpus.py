"""Runs a program on fake GPUs: python on_fake_gpus.py PROGRAM ARGUMENTS..."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gpus

gpus.use()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
