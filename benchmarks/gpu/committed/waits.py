"""Runs the prototype of committed waits: whether its patterns end, and the cost of its calls.

    python benchmarks/gpu/committed/waits.py

Three ways of waiting are compared: "committed" (a stream waits for work that a driver has), "words"
(a stream waits for a processor, which has to make the copy: DLSLIME_STREAM_WAITS=on) and "host".
Answers: "committed.pattern.WAY.NAME", "committed.cost.WAY.FIELD", in microseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.runner.findings import Findings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PTX = HERE.parent / "driver" / "spin.ptx"
PROGRAM = "DLSLIME_GPU_CHECK_COMMITTED"  # the variable that names the compiled prototype
PATTERNS = (
    *("send_first", "receive_first", "crossed", "late_load", "full_queue", "free", "pageable"),
    *("many_streams", "pipeline"),
)
MEASUREMENTS = ("calls", "plain", "large_one_way", "small_one_way")
SETTINGS = [("LAZY", "8"), ("LAZY", "1"), ("EAGER", "8")]  # how kernels load, hardware queues
START_S = 25.0  # more than the prototype's own limit for the start
REAL = os.environ.get("DLSLIME_TEST_GPUS") == "real"
# After both processes have started; a fake driver's copies wait for busy processors.
PATTERN_S, MEASUREMENT_S = (6.0, 10.0) if REAL else (60.0, 60.0)
CONTROL_S = 1.5 if REAL else 0.8  # for the way expected to hang: many runs take all of the time
FEW = SETTINGS[:1] if REAL else SETTINGS[:2]


def compile_to(program: Path) -> None:
    """Compile the prototype.

    Raises:
        subprocess.CalledProcessError: the compiler's output says why.
    """
    program.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(source) for source in HERE.glob("*.cpp"))
    flags = ["-std=c++20", "-O2", "-pthread"]
    includes = [f"-I{ROOT / 'csrc'}", f"-I{HERE.parent}"]
    command = [os.environ.get("CXX", "c++"), *flags, *includes, *sources]
    subprocess.run([*command, "-o", str(program), "-ldl"], check=True)


def run(way: str, name: str, setting: tuple[str, str], limit_s: float) -> dict[str, Any]:
    """Run one program of the prototype; return its line."""
    variables = {"CUDA_MODULE_LOADING": setting[0], "CUDA_DEVICE_MAX_CONNECTIONS": setting[1]}
    command = [os.environ[PROGRAM], str(PTX), way, name, str(limit_s)]
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE)
    try:
        said, _ = process.communicate(timeout=START_S + limit_s)
    except subprocess.TimeoutExpired as late:  # the step's end ends the processes
        said = late.stdout or b""
    found: dict[str, Any] = {"outcome": "it said nothing"}
    with contextlib.suppress(json.JSONDecodeError):
        found = json.loads(said)
    return found


def patterns(way: str, settings: list[tuple[str, str]], limit_s: float) -> bool:
    """Run all patterns in all settings; tell whether each has ended, with the right bytes."""
    good = True
    for name in PATTERNS:
        found, held = {}, {}
        for setting in settings:
            one = run(way, name, setting, limit_s)
            found[".".join(setting)] = one["outcome"]
            if "rounds_held" in one:
                held[".".join(setting)] = one["rounds_held"]
        Findings(f"committed.pattern.{way}.").answer(**{name: found})
        if held:
            Findings(f"committed.held.{way}.").answer(**{name: held})
        good = good and set(found.values()) == {"ok"}
    return good


def costs() -> bool:
    """Measure every way; tell whether every measurement was possible."""
    good = True
    for name in MEASUREMENTS:
        for way in ("committed",) if name == "plain" else ("committed", "words", "host"):
            found = run(way, name, ("LAZY", "8"), MEASUREMENT_S)
            outcome = found.pop("outcome")
            found.pop("seconds", None)
            answers = {f"{name}.{field}": value for field, value in found.items()}
            if outcome != "ok":
                answers = {name: outcome}
            Findings(f"committed.cost.{way}.").answer(**answers)
            good = good and (outcome == "ok" or way != "committed")
    return good


def main() -> int:
    """Run everything; the exit status says whether committed waits have held."""
    if len(sys.argv) > 1:
        compile_to(Path(sys.argv[1]))
        return 0
    ended = patterns("committed", SETTINGS, PATTERN_S)
    Findings("committed.").answer(all_patterns_end=ended)
    measured = costs()
    patterns("words", FEW, CONTROL_S)  # the way to be replaced: may hang
    return 0 if ended and measured else 1


if __name__ == "__main__":
    sys.exit(main())
