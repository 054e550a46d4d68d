"""Restarts by torchrun of a job with a dead worker: the next life works in spite of old keys.

torchrun keeps one store for all lives of a job, so addresses and counters of dead processes are
still in the store.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import BACKEND, dlslime_only
from paths import PROGRAMS
from programs.torchrun import torchrun

PROGRAM = PROGRAMS / "elastic.py"

# Gloo connects to the addresses of the last life, and fails by chance.
pytestmark = dlslime_only


@pytest.mark.parametrize(
    ("ranks", "lives", "death"),
    [
        pytest.param(2, 1, "exit", id="two_ranks_one_exits"),
        pytest.param(3, 1, "kill", id="three_ranks_one_killed"),
        pytest.param(2, 3, "kill", id="two_ranks_killed_three_times"),
    ],
)
def test_restarted_job_passes(tmp_path: Path, ranks: int, lives: int, death: str) -> None:
    record = tmp_path / "record.txt"
    status, output = torchrun(
        PROGRAM,
        ["--backend", BACKEND, "--record", str(record), "--failing-lives", str(lives)]
        + ["--death", death],
        ranks,
        tmp_path,
        options=["--max-restarts", str(lives)],
    )
    assert status == 0, output
    finished = sorted(record.read_text().splitlines())
    assert finished == [f"rank {rank} finished in life {lives}" for rank in range(ranks)]
