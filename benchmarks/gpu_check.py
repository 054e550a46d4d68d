"""All work that needs a machine with GPUs, in one command: questions, tests and figures.

    python benchmarks/gpu_check.py                       # into benchmarks/results/gpu.json and .log
    python benchmarks/gpu_check.py --out h200            # benchmarks/results/gpu-h200.json and .log
    python benchmarks/gpu_check.py --built build/for_gpu # with the result of .ci/build_for_gpu
    python benchmarks/gpu_check.py --fake                # without a GPU: tests the check

Needs torch with CUDA, and a C++ compiler and ninja unless --built is given; no network, no name of
the host, and nothing is installed. The check ends within the budget of 450 s, and saves its
findings after every step, also into $OUT if set. Two ranks share the first GPU; with several GPUs,
some steps run again with a GPU for each rank. docs/cuda.md gives the meaning of the results'
fields. The exit status: 0 if all has passed, 1 if a step failed or was left out for lack of time, 2
if there is no GPU and the rest has passed; never whether times were good.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu.runner import plan, table
from gpu.runner.results import Results
from gpu.runner.steps import Runner, Step

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = "no GPU"


class StoppedError(BaseException):
    """The program was told to end."""


def stop(number: int, _frame: FrameType | None) -> None:
    """Handle a signal that ends programs: the findings are saved first."""
    raise StoppedError(signal.Signals(number).name)


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables of all steps."""
    here = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_MODULE_LOADING": "EAGER",  # late loading has steps of its own
        "GLOO_SOCKET_IFNAME": "lo",  # else Gloo looks up the host's name
        "RES_OPTIONS": "timeout:1 attempts:1",  # so does c10d, which goes on without an answer
        # ninja lies beside the interpreter in a virtual environment.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    if options.fake:
        here["DLSLIME_CUDA_LIBRARY"] = str(ROOT / "build" / "fake_gpu" / "libcuda.so.1")
        here.setdefault("FAKE_CUDA_ROOM", "1000")
    else:
        here |= {"DLSLIME_TEST_GPUS": "real", "CUDA_VISIBLE_DEVICES": "0"}
    paths = [*([] if options.fake else [str(options.built)]), here.get("PYTHONPATH", "")]
    return {**here, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def learn_of_gpus(runner: Runner, *, fake: bool) -> bool:
    """Note which steps can be run here; tell whether the machine has several GPUs."""
    machine = runner.results.found["machine"]
    # Without an answer steps are tried: the answer may have taken longer than the limit.
    of_driver, of_torch = machine.get("driver_gpus", 1), machine.get("torch_gpus", 1)
    runner.learn("GPU", isinstance(of_driver, int) and of_driver > 0, NO_GPU)
    has_torch = fake or (isinstance(of_torch, int) and of_torch > 0)
    lack = f"torch sees no GPU ({of_torch})" if "GPU" in runner.facts else NO_GPU
    runner.learn("torch's GPU", has_torch, lack)
    return not fake and len(machine.get("gpus", [])) > 1


def keep_gpu_awake() -> None:
    """Hold the GPU's device open: else each new program may initialise the device again."""
    with contextlib.suppress(OSError):
        os.open("/dev/nvidia0", os.O_RDWR | os.O_CLOEXEC)


def run_all(runner: Runner, options: argparse.Namespace) -> None:
    """Run every step."""

    def run(steps: Iterable[Step]) -> None:
        for step in steps:
            if not options.only or any(part in step.name for part in options.only):
                runner.run(step)

    fake, built = options.fake, options.built
    make = not fake and not options.given
    for step in plan.preparation(built, make=make, fake=fake):
        runner.run(step)
    several = learn_of_gpus(runner, fake=fake)
    if not fake and "GPU" in runner.facts:
        keep_gpu_awake()
    run(plan.questions(built, fake=fake))
    run([Step("cuda_messages", plan.MESSAGES, 60, plan.OURS)])
    run(plan.figures(built, separate_gpus=several, fake=fake))
    run(plan.tests(separate_gpus=several, fake=fake))
    run(plan.last(fake=fake))


def status_of(results: Results) -> int:
    """Return the exit status."""
    outcomes = {record["outcome"] for record in results.found["steps"]}
    if outcomes <= {"ok"}:
        return 0
    return 2 if outcomes <= {"ok", NO_GPU} else 1


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="", help="the name of the results")
    parser.add_argument("--budget", type=float, default=450, help="seconds for everything")
    parser.add_argument("--built", type=Path, help="a folder that .ci/build_for_gpu has made")
    parser.add_argument("--fake", action="store_true", help="the installed dlslime, on no GPU")
    parser.add_argument("--results", type=Path, help="the folder of the results")
    parser.add_argument(
        "--only", action="append", default=[], help="the steps with this in their names; repeatable"
    )
    options = parser.parse_args()
    options.given = options.built is not None
    options.built = (options.built or ROOT / "build" / "gpu_check").resolve()
    return options


def main() -> int:
    """Do the whole check."""
    options = parse()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    usual = ROOT / "build" if options.fake else ROOT / "benchmarks" / "results"
    folders = [(options.results or usual).resolve()]
    if os.environ.get("OUT"):
        folders.append(Path(os.environ["OUT"]))
    name = f"gpu{'-' * bool(options.out)}{options.out}"
    results = Results(folders, name, options.budget, " ".join(sys.argv))
    runner = Runner(results, options.budget, environment(options), ROOT)
    if options.fake:
        runner.patience = 4.0  # the limits are for a machine without other work
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        run_all(runner, options)
        results.finish(runner.elapsed_s())
    except StoppedError as error:
        print(f"stopped by {error}", flush=True)
    finally:
        results.close()
    print(table.text(results.found), flush=True)
    print(f"{results.path}: {runner.elapsed_s():.0f} s", flush=True)
    return status_of(results) if results.found["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
