"""Evaluation of findings by benchmarks/gpu_check.py: fits, and a line for each question."""

import sys

import pytest

from paths import BENCHMARKS

sys.path.append(str(BENCHMARKS))

from gpu.figures import fit  # noqa: E402
from gpu.runner import questions  # noqa: E402


def test_times_are_fitted_by_relative_error() -> None:
    sizes = [1 << power for power in range(10, 28, 3)]
    line = fit.line({size: 5e-6 + size / 400e9 for size in sizes})
    assert line.fixed == pytest.approx(5e-6)
    assert line.each == pytest.approx(1 / 400e9)
    assert line.worst < 1e-6
    # A large size with an error of 1% does not hide the fixed cost of a message.
    points = {size: 5e-6 + size / 400e9 for size in sizes}
    points[sizes[-1]] *= 1.01
    assert fit.line(points).fixed == pytest.approx(5e-6, rel=0.05)
    with pytest.raises(ValueError, match="two points"):
        fit.line({1: 1.0})


FREE = {"event_query": 0.1, "write_value": 0.2, "copy": 0.1, "batch": 0.1, "returns_ms": 1.0}
ANSWERS = {
    "driver.remap.buffer_id_differs": False,
    "driver.remap.block_id_differs": True,
    "driver.remap.handle_differs": True,
    "driver.batch_1024.right": True,
    "driver.batch_1024.result": "ok",
    "driver.batch_1024.settled": "ok",
    "driver.batch_1024.us_per_copy": 0.5,
    "driver.batch_8192.right": False,
    "driver.batch_8192.result": "CUDA_ERROR_UNKNOWN",
    "driver.batch_8192.us_per_copy": 0.1,
    "driver.batch_8192.settled": "ok",
    "driver.batch_60000.ended": "died of SIGSEGV",
    "lock.EAGER.8.cpu": {**FREE, "copy": "blocked", "batch": "blocked"},
    "lock.EAGER.8.item": FREE,
    "lock.EAGER.8.free": {**FREE, "batch": "CUDA_ERROR_INVALID_VALUE"},
    "lock.EAGER.legacy.cpu": FREE,
    "lock.EAGER.legacy.streams": {"move": 1, "of": 2},
    "lock.LAZY.8.error": "no process began",
    "committed.pattern.committed.free": {"LAZY.1": "ok", "EAGER.8": "did not end"},
}


def test_every_question_has_a_line() -> None:
    lines = {entry["question"]: entry["answer"] for entry in questions.answered({"answers": {}})}
    assert len(lines) == len(questions.QUESTIONS)
    assert set(lines.values()) == {questions.NOT_ANSWERED}
    lines = {
        entry["question"]: entry["answer"] for entry in questions.answered({"answers": ANSWERS})
    }
    assert lines["Does another piece at the same address show?"] == (
        "by buffer id: no; by block id: yes; by handle: yes"
    )
    assert lines["How large may a batch of copies be?"] == (
        "1024: 0.5 us each; 8192: CUDA_ERROR_UNKNOWN; 60000: died of SIGSEGV"
    )
    assert lines["What does a stream that waits stop, with kernels loaded early?"] == (
        "a stream of its own: of 3 calls cpu holds up copy+batch; "
        "free batch CUDA_ERROR_INVALID_VALUE | the default stream: of 1 calls none holds ours up"
    )
    assert lines["What does a stream that waits stop, with kernels loaded late?"] == (
        "a stream of its own: no process began"
    )
    assert lines["Do committed waits end in every pattern?"] == (
        "1 of 9 patterns run: free EAGER.8: did not end"
    )
