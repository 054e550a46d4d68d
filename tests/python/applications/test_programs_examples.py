"""The examples run under torchrun as their first lines say, and check their own results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BACKEND, dlslime_only
from nodes import free_port
from paths import EXAMPLES, PROGRAMS
from programs.torchrun import torchrun


def run_example(name: str, ranks: int, scratch: Path, *arguments: str) -> str:
    """Run an example to its end; return the output."""
    status, output = torchrun(EXAMPLES / name, ["--backend", BACKEND, *arguments], ranks, scratch)
    assert status == 0, output
    return output


@pytest.mark.parametrize("ranks", [2, 3])
def test_send_recv_checks_and_measures(tmp_path: Path, ranks: int) -> None:
    output = run_example("send_recv.py", ranks, tmp_path)
    assert output.count("ok: ") == 4
    for size in ("8 B", "64 KiB", "128 MiB"):
        line = rf"^ *{size} +[\d.]+ (us|ms|s) +[\d.]+ [MG]B/s +\d+ +[\d,]+ +[\d.]+ [MG]B/s$"
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


def run_transfer(device: str, ours: dict[str, str], theirs: dict[str, str]) -> str:
    """Run the initiator and the target with separate variables; return the initiator's output."""
    target_at = f"localhost:{free_port()}"
    runner = [] if device == "cpu" else [str(PROGRAMS / "cuda" / "on_fake_gpus.py")]
    program = [str(EXAMPLES / "transfer.py"), "all", "--target", target_at, "--device", device]
    command = [sys.executable, *runner, *program, "--role"]
    with subprocess.Popen(
        [*command, "target"], stdout=subprocess.PIPE, text=True, env={**os.environ, **theirs}
    ) as target:
        initiator = subprocess.run(
            [*command, "initiator"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, **ours},
        )
        output, _ = target.communicate(timeout=120)
    assert target.returncode == 0, output
    assert re.search(r"^read +16 MiB in +[\d.]+ ms", initiator.stdout, re.MULTILINE)
    assert "was told 77" in output
    return initiator.stdout


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_transfer_reads_and_writes_in_every_way(device: str) -> None:
    assert "reached by shm" in run_transfer(device, {}, {})


def prefill_decode(*arguments: str) -> tuple[int, str]:
    """Run both processes on this host; return the exit status and the output."""
    command = [sys.executable, str(EXAMPLES / "prefill_decode.py"), "--check", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return run.returncode, run.stdout + run.stderr


@dlslime_only
def test_prefill_decode_generates_what_one_process_does() -> None:
    status, output = prefill_decode("--prompts", "33", "7", "150", "--tokens", "12")
    assert status == 0, output
    assert "decode is reached by shm" in output
    assert output.count("as in one process") == 3, output
    # 3 + 1 + 10 blocks, of 8 layers' keys and values in pages of 16 KiB
    total = r"^all +190 +14 +3\.50 +[\d.]+ +[\d.]+ +\d+\.\d\d +\d+%$"
    assert re.search(total, output, re.MULTILINE), output


@dlslime_only
def test_prefill_decode_notices_that_a_layer_is_missing() -> None:
    status, output = prefill_decode("--prompts", "7", "--tokens", "4", "--lose-layer", "3")
    assert status == 1, output
    assert output.count("DIFFERENT") == 1, output
