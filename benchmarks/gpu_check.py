"""Builds dlslime on a machine with GPUs, tests all of it that is about them, and measures.

    python benchmarks/gpu_check.py                # into benchmarks/results/gpu.json
    python benchmarks/gpu_check.py --out h200     # benchmarks/results/gpu-h200.json
    python benchmarks/gpu_check.py --fake         # without a GPU: shows that this works

Needs torch with CUDA, a C++ compiler and ninja; no network, and nothing is installed: the build
goes to build/gpu_check. Two ranks share the first GPU; where there are several, the tests are run
with a GPU for each rank, too. The exit status says whether all tests passed, never whether the
times were good.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from report import environment

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gpu_check"
TESTS = ROOT / "tests" / "python"
TAIL = 6000  # characters of a failed step's output that are kept


class Check:
    """Runs steps one after the other, and keeps what became of them."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self.steps: list[dict[str, Any]] = []

    def run(self, name: str, command: list[str], limit_s: float, **more: str) -> bool:
        """Run a step, for so long at most; `more` are environment variables."""
        print(f"== {name}", flush=True)
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**self.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nnot over after {limit_s:g} s"
        good = process.returncode == 0
        seconds = round(time.monotonic() - start, 1)
        said = [text for text in output.splitlines() if text.startswith("the driver has made")]
        kept = "; ".join(said) if good else output[-TAIL:]
        self.steps.append({"step": name, "ok": good, "seconds": seconds, "output": kept})
        print((output if not good else f"   ok, {seconds:g} s {kept}").rstrip(), flush=True)
        return good


def said(*command: str) -> str:
    """What a command prints; nothing where it can't be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """The GPUs and how they are connected, beside what `report` says of the rest."""
    query = "name,driver_version,memory.total,pci.bus_id,compute_mode"
    return {
        **environment(),
        "gpus": said("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").splitlines(),
        "topology": said("nvidia-smi", "topo", "-m").splitlines(),
    }


def build(check: Check) -> bool:
    """Build into a folder of its own, which the environment's Python then finds first."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    target = ["--no-build-isolation", "--upgrade", "--target", str(BUILD), "."]
    if not check.run("build", [*pip, *target], 300):
        return False
    inherited = check.environ.get("PYTHONPATH")
    check.environ["PYTHONPATH"] = os.pathsep.join([str(BUILD), *([inherited] if inherited else [])])
    return True


def launch(program: str, *arguments: str) -> list[str]:
    """The command line of a program of two ranks."""
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [sys.executable, *two, str(TESTS / "programs" / f"{program}.py"), *arguments]


def tests(check: Check, layouts: dict[str, dict[str, str]]) -> None:
    """The programs that the test suite runs on the fake driver."""
    for layout, more in layouts.items():
        for program in ("cuda_messages", "cuda_transfers"):
            check.run(f"{program}, {layout}", launch(program), 120, **more)
    late = {**next(iter(layouts.values())), "CUDA_MODULE_LOADING": "LAZY"}
    check.run("cuda_messages, late loading", launch("cuda_messages", "--host-waits"), 120, **late)


def dangers(check: Check) -> None:
    """Say whether streams that wait keep the driver from working, which ends with a time-out."""
    for loading in ("EAGER", "LAZY"):
        step = f"launches behind a stream that waits, {loading.lower()} loading"
        more = {"CUDA_MODULE_LOADING": loading, "DLSLIME_STREAM_WAITS": "on"}
        check.run(step, launch("cuda_launches"), 60, **more)


def example(check: Check, devices: tuple[str, str]) -> None:
    """Two processes that read and write each other's memory."""
    each = [f"{sys.executable} examples/transfer.py all --device {device}" for device in devices]
    script = f"{each[0]} --role target & {each[1]} --role initiator && wait $!"
    check.run("examples/transfer.py", ["bash", "-c", script], 120)


def measure(check: Check) -> dict[str, Any]:
    """The figures; nothing if they could not be measured."""
    made = ROOT / "build" / "gpu_figures.json"
    made.unlink(missing_ok=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--json", str(made)]
    if not check.run("figures", command, 260):
        return {}
    found: dict[str, Any] = json.loads(made.read_text())
    alone = [*command, "--pages", "the same by copy engines"]
    if check.run("pages without the kernel", alone, 60, DLSLIME_GPU_KERNEL="off"):
        found["figures"] += json.loads(made.read_text())["figures"]
    return found


def table(found: dict[str, Any]) -> None:
    """Print the figures beside their targets."""
    for entry in found.get("figures", []):
        baseline = "" if entry["baseline"] is None else f"of {entry['baseline']:.4g}"
        ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.2f}"
        word = {True: "ok", False: "short", None: ""}[entry["ok"]]
        value = f"{entry['value']:.4g} {entry['unit']}"
        name, target = entry["name"], entry["target"]
        print(f"{name:34s} {value:>14s} {baseline:12s} {ratio:6s} {target:9s} {word}")


def main() -> int:
    """Do all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="", help="the name of the result")
    parser.add_argument("--fake", action="store_true", help="the installed dlslime, on no GPU")
    options = parser.parse_args()
    check = Check({**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})
    check.environ["CUDA_MODULE_LOADING"] = "EAGER"  # so that streams may wait (docs/cuda.md)
    one = {} if options.fake else {"CUDA_VISIBLE_DEVICES": "0"}
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    layouts = {
        "no GPU" if options.fake else "one GPU": one,
        "expandable segments": {**one, **expandable},
    }
    described = machine()
    if not options.fake:
        check.environ["DLSLIME_TEST_GPUS"] = "real"
        if len(described["gpus"]) > 1:
            layouts["a GPU for each rank"] = {}
    found: dict[str, Any] = {}
    if options.fake or build(check):
        check.run("linkage", [sys.executable, str(TESTS / "test_linkage.py")], 120)
        tests(check, layouts)
        dangers(check)
        if not options.fake:
            example(check, ("cuda:0", f"cuda:{min(1, len(described['gpus']) - 1)}"))
        found = measure(check)
    table(found)
    result = {"machine": described, "steps": check.steps, **found}
    folder = ROOT / "build" if options.fake else ROOT / "benchmarks" / "results"
    path = folder / f"gpu{'-' * bool(options.out)}{options.out}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    failed = [entry["step"] for entry in check.steps if not entry["ok"]]
    print(f"{path.relative_to(ROOT)}: {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
