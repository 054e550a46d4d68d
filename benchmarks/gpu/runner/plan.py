"""Which steps gpu_check runs, in which order: what is worth most comes first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpu.committed.waits import PROGRAM
from gpu.runner.steps import Step

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
PROGRAMS = ROOT / "tests" / "python" / "programs"
ON_DRIVER = ("GPU",)  # what a step needs that asks the driver alone
ON_TORCH = ("GPU", "torch's GPU")
OURS = (*ON_TORCH, "import")

LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def python(program: str, *arguments: str) -> list[str]:
    """The command of one of gpu_check's own programs."""
    return [sys.executable, str(HERE / f"{program}.py"), *arguments]


def ranks(program: str, *arguments: str) -> list[str]:
    """The command of a program of the tests, in two ranks."""
    return [*python("runner/launch", "2"), str(PROGRAMS / f"{program}.py"), *arguments]


def preparation(built: Path, *, make: bool, fake: bool) -> Iterator[Step]:
    """The steps that say what there is, and make what the others need."""
    yield Step("machine", python("runner/describe"), 60)
    if fake:
        make_fake = (
            "import sys; sys.path.insert(0, 'tests/python'); import fake_gpu; fake_gpu.use()"
        )
        yield Step("fake driver", [sys.executable, "-c", make_fake], 300)
    if make:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        target = ["--no-build-isolation", "--upgrade", "--target", str(built), "."]
        yield Step("build", [*pip, *target], 240)
    if not (built / "committed_waits").exists():
        prototype = python("committed/waits", str(built / "committed_waits"))
        yield Step("compile the prototype", prototype, 60)
    imports = [sys.executable, "-P", "-c", "import dlslime_backend._C as c; print(c.__file__)"]
    yield Step("import", imports, 60)
    yield Step("linkage", [sys.executable, "tests/python/test_linkage.py"], 60, ("import",))


def questions(built: Path) -> Iterator[Step]:
    """What only a GPU can answer, by programs that need nothing of ours."""
    yield Step("driver probe", python("driver/probe"), 40, ON_DRIVER)
    yield Step("lock matrix", python("driver/lock_matrix"), 90, ON_TORCH)
    prototype = {PROGRAM: str(built / "committed_waits")}
    yield Step("committed waits", python("committed/waits"), 75, ON_DRIVER, prototype)


def figures(*, separate_gpus: bool) -> Iterator[Step]:
    """Each group in processes of its own: one that fails or hangs loses no other."""
    command = python("figures/figures")
    yield Step("figures: bandwidth", [*command, "bandwidth"], 60, OURS)
    yield Step("figures: latency", [*command, "latency"], 40, OURS)
    yield Step("figures: pages", [*command, "pages"], 40, OURS)
    without = {"DLSLIME_GPU_KERNEL": "off"}
    yield Step("figures: pages by copies", [*command, "pages", "copies"], 40, OURS, without)
    yield Step("figures: latency, lazy loading", [*command, "latency", "lazy"], 40, OURS, LAZY)
    yield Step(
        "figures: bandwidth, expandable",
        [*command, "bandwidth", "expandable"],
        60,
        OURS,
        EXPANDABLE,
    )
    if separate_gpus:
        several = {"CUDA_VISIBLE_DEVICES": "0,1"}
        yield Step(
            "figures: bandwidth, two GPUs", [*command, "bandwidth", "two"], 60, OURS, several
        )
        yield Step("figures: latency, two GPUs", [*command, "latency", "two"], 40, OURS, several)


def tests(*, separate_gpus: bool, fake: bool) -> Iterator[Step]:
    """The programs that the test suite runs on the fake driver."""
    yield Step("cuda_transfers", ranks("cuda_transfers"), 60, OURS)
    yield Step("cuda_messages, expandable", ranks("cuda_messages"), 60, OURS, EXPANDABLE)
    yield Step("cuda_transfers, expandable", ranks("cuda_transfers"), 60, OURS, EXPANDABLE)
    host = ranks("cuda_messages", "--host-waits")
    yield Step("cuda_messages, lazy loading", host, 60, OURS, LAZY)
    if separate_gpus:
        several = {"CUDA_VISIBLE_DEVICES": "0,1"}
        yield Step("cuda_messages, two GPUs", ranks("cuda_messages"), 60, OURS, several)
        yield Step("cuda_transfers, two GPUs", ranks("cuda_transfers"), 60, OURS, several)
    if not fake:  # the example takes the GPUs that torch has
        each = [f"{sys.executable} examples/transfer.py all --device cuda:0 --role "] * 2
        script = f"{each[0]}target & {each[1]}initiator && wait $!"
        yield Step("examples/transfer.py", ["bash", "-c", script], 40, OURS)


def last(*, fake: bool) -> Iterator[Step]:
    """What may hang, or disturbs what is measured beside it."""
    yield Step("copies while all processors are busy", python("figures/busy_gpu"), 40, OURS)
    for loading in ("EAGER", "LAZY"):
        name = f"launches behind a stream that waits, {loading}"
        more = {"CUDA_MODULE_LOADING": loading, "DLSLIME_STREAM_WAITS": "on"}
        yield Step(name, ranks("cuda_launches"), 45, OURS, more)
    if not fake:  # the profiler is CUDA's own
        yield Step("profiler", python("figures/figures", "profile"), 60, OURS)
