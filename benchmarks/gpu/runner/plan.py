"""The steps of gpu_check in order: the most valuable steps come first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpu.committed.waits import PROGRAM
from gpu.figures.calls import LIBRARY as TIMED
from gpu.runner.steps import Step

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
PROGRAMS = ROOT / "tests" / "python" / "programs" / "cuda"
ON_DRIVER = ("GPU",)  # the needs of a step that uses only the driver
ON_TORCH = ("GPU", "torch's GPU")
OURS = (*ON_TORCH, "import")

LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
TWO = {"CUDA_VISIBLE_DEVICES": "0,1"}
COUNTER = "libtimed.so"


def python(program: str, *arguments: str) -> list[str]:
    """Return the command of one of gpu_check's own programs."""
    return [sys.executable, str(HERE / f"{program}.py"), *arguments]


def ranks(program: str, *arguments: str) -> list[str]:
    """Return the command of a program of the tests, in two ranks."""
    return [*python("runner/launch", "2"), str(PROGRAMS / f"{program}.py"), *arguments]


MESSAGES = ranks("cuda_messages", "--host-waits")


def preparation(built: Path, *, make: bool, fake: bool) -> Iterator[Step]:
    """Yield the steps that describe the machine, and build programs for later steps."""
    if fake:  # before the machine is asked for its number of GPUs
        make_fake = (
            "import sys; sys.path.insert(0, 'tests/python'); import fake_gpu; fake_gpu.use()"
        )
        yield Step("fake driver", [sys.executable, "-c", make_fake], 300)
    yield Step("machine", python("runner/describe"), 120, (), LAZY)
    if make:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        target = ["--no-build-isolation", "--upgrade", "--target", str(built), "."]
        yield Step("build", [*pip, *target], 240)
    if make or fake or not (built / "committed_waits").exists():
        prototype = python("committed/waits", str(built / "committed_waits"))
        yield Step("compile the prototype", prototype, 60)
    if make or fake or not (built / COUNTER).exists():
        counter = python("figures/calls", "compile", str(built / COUNTER))
        yield Step("compile the counter of calls", counter, 60)
    imports = [sys.executable, "-P", "-c", "import dlslime_backend._C as c; print(c.__file__)"]
    yield Step("import", imports, 60)
    yield Step("linkage", [sys.executable, "tests/python/project/test_linkage.py"], 60, ("import",))


def questions(built: Path, *, fake: bool) -> Iterator[Step]:
    """Yield the steps for questions to a GPU, by programs without dlslime."""
    yield Step("driver probe", python("driver/probe"), 50, ON_DRIVER, LAZY)
    yield Step("lock matrix", python("driver/lock_matrix"), 90, ON_TORCH)
    prototype = {PROGRAM: str(built / "committed_waits")}
    limit_s = 400 if fake else 90
    yield Step("committed waits", python("committed/waits"), limit_s, ON_DRIVER, prototype)


def figures(built: Path, *, separate_gpus: bool, fake: bool) -> Iterator[Step]:
    """Yield a step for each group of figures: a group that fails or hangs loses no other group.

    Kernels are loaded late, as by default and in less time, if the group's figures don't change.
    """

    def step(name: str, group: str, variant: str, limit_s: float, more: dict[str, str]) -> Step:
        return Step(f"figures: {name}", [*command, group, variant], limit_s, OURS, more)

    command = python("figures/figures")
    yield step("bandwidth", "bandwidth", "plain", 60, LAZY)
    yield Step("copies while all processors are busy", python("figures/busy_gpu"), 40, OURS, LAZY)
    yield step("latency", "latency", "plain", 40, {})
    if not fake and not separate_gpus:
        shared = [*python("runner/mps"), *command]
        yield Step("figures: latency by MPS", [*shared, "latency", "mps"], 40, OURS, LAZY)
        yield Step("figures: bandwidth by MPS", [*shared, "bandwidth", "mps"], 40, OURS, LAZY)
    counter = {**LAZY, TIMED: str(built / COUNTER)}
    yield Step("figures: calls of the driver", python("figures/calls"), 60, OURS, counter)
    yield step("pages", "pages", "plain", 40, LAZY)
    yield step("pages by copies", "pages", "copies", 40, {**LAZY, "DLSLIME_GPU_KERNEL": "off"})
    yield step("mappings", "mappings", "plain", 40, LAZY)
    if separate_gpus:
        yield step("bandwidth, two GPUs", "bandwidth", "two", 60, {**LAZY, **TWO})
        yield step("latency, two GPUs", "latency", "two", 40, TWO)


def tests(*, separate_gpus: bool, fake: bool) -> Iterator[Step]:
    """Yield the programs that the test suite runs on the fake driver."""
    late = {**LAZY, **EXPANDABLE}
    yield Step("collectives by NCCL", ranks("cuda_nccl"), 60, OURS, LAZY)
    yield Step("cuda_messages, lazy loading", MESSAGES, 60, OURS, LAZY)
    yield Step("cuda_transfers", ranks("cuda_transfers"), 60, OURS, LAZY)
    yield Step("cuda_messages, expandable", MESSAGES, 60, OURS, late)
    yield Step("cuda_transfers, expandable", ranks("cuda_transfers"), 60, OURS, late)
    if not fake:  # test_original_programs runs some of the programs on the fake driver
        yield Step("programs of the original", python("runner/original"), 100, OURS, LAZY)
    if separate_gpus:
        yield Step("cuda_messages, two GPUs", MESSAGES, 60, OURS, TWO)
        yield Step("cuda_transfers, two GPUs", ranks("cuda_transfers"), 60, OURS, TWO)
    if not fake:  # the example takes the GPUs that torch has
        common = "--device cuda:0 --target 127.0.0.1:29600 --role"
        each = [f"{sys.executable} examples/transfer.py all {common} "] * 2
        script = f"{each[0]}target & {each[1]}initiator && wait $!"
        yield Step("examples/transfer.py", ["bash", "-c", script], 40, OURS)


def last(*, fake: bool) -> Iterator[Step]:
    """Yield the steps that may hang or disturb measurements, and further figures of a kind."""
    for loading in ("EAGER",) if fake else ("EAGER", "LAZY"):
        name = f"launches behind a stream that waits, {loading}"
        more = {"CUDA_MODULE_LOADING": loading, "DLSLIME_STREAM_WAITS": "on"}
        yield Step(name, ranks("cuda_launches"), 60, OURS, more)
    command = python("figures/figures")
    late = [*command, "latency", "lazy"]
    yield Step("figures: latency, lazy loading", late, 40, OURS, LAZY)
    expandable = [*command, "bandwidth", "expandable"]
    more = {**LAZY, **EXPANDABLE}
    yield Step("figures: bandwidth, expandable", expandable, 60, OURS, more)
    if not fake:  # the profiler is CUDA's own, and disturbs all later steps
        yield Step("profiler", [*command, "profile"], 60, OURS, LAZY)
