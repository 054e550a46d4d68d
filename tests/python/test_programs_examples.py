"""The examples run under torchrun as their first lines say, and check their own results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import BACKEND
from programs.torchrun import torchrun

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(name: str, ranks: int, scratch: Path, *arguments: str) -> str:
    """Runs an example to its end; returns what it printed."""
    status, output = torchrun(EXAMPLES / name, ["--backend", BACKEND, *arguments], ranks, scratch)
    assert status == 0, output
    return output


@pytest.mark.parametrize("ranks", [2, 3])
def test_send_recv_checks_and_measures(tmp_path: Path, ranks: int) -> None:
    output = run_example("send_recv.py", ranks, tmp_path)
    assert output.count("ok: ") == 4
    for size in ("8 B", "64 KiB", "128 MiB"):
        line = rf"^ *{size} +[\d.]+ (us|ms) +[\d.]+ [MG]B/s +\d+ +[\d,]+ +[\d.]+ [MG]B/s$"
        assert re.search(line, output, re.MULTILINE), output
    if BACKEND == "dlslime":
        assert re.search(r"^Rank 0 sent rank 1 [\d,]+ messages", output, re.MULTILINE), output


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ring_attention_equals_one_process(tmp_path: Path, ranks: int) -> None:
    output = run_example("ring_attention.py", ranks, tmp_path, "--block", "128")
    assert output.count("equals that of one process") == 2


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe"])
def test_pipeline_trains_as_one_process(tmp_path: Path, schedule: str) -> None:
    output = run_example("pipeline.py", 2, tmp_path, "--schedule", schedule)
    assert output.count("as in one process") == 4
