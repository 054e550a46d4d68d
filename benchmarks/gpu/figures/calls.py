"""Calls of the driver for a message and for a batch of pages, and the time of each call.

    python benchmarks/gpu/figures/calls.py               # the host's work, call by call
    python benchmarks/gpu/figures/calls.py compile FILE  # the library that counts calls

Answers: "calls.PART.ROLE.THREAD", by name of the call: the number of calls for a message (or
batch), and the microseconds of a call; "calls.PART.ROLE.host_us": the time of the program's own
thread in an isend() or irecv(), in a wait(), or in a read() to its end.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "python"))

from gpu.runner.findings import Findings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LIBRARY = "DLSLIME_GPU_CHECK_TIMED"  # the variable that names the library that counts
REAL_LIBRARY = "DLSLIME_GPU_CHECK_REAL_LIBRARY"  # the variable that names the library behind
THREADS = ("caller", "others")
PARTS = {"8_kib": (8 << 10, 400), "1_mib": (1 << 20, 200)}  # messages: bytes, how many
PAGES, BATCHES = 512, 20
DEADLINE_S = 100

Sums = dict[str, tuple[int, int]]  # calls and nanoseconds, by "thread.name"


def compile_to(library: Path) -> None:
    """Compile the library that counts.

    Raises:
        subprocess.CalledProcessError: the compiler's output says why.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{ROOT / 'csrc'}"]
    source = str(HERE / "timed_driver.cpp")
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *flags, source, "-o", str(library), "-ldl"], check=True)


class Counter:
    """The sums of the library that counts, in the calling process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["DLSLIME_CUDA_LIBRARY"])
        self._library.timed_name.restype = ctypes.c_char_p

    def sums(self) -> Sums:
        """Return the sums so far."""
        found: Sums = {}
        for call in range(self._library.timed_calls()):
            name = self._library.timed_name(call).decode()
            for others, thread in enumerate(THREADS):
                calls, took = ctypes.c_uint64(), ctypes.c_uint64()
                self._library.timed_sum(call, others, ctypes.byref(calls), ctypes.byref(took))
                found[f"{thread}.{name}"] = (calls.value, took.value)
        return found

    def during(self, action: Callable[[], dict[str, float]], count: int) -> dict[str, Any]:
        """Run `action` for `count` messages; return its times, and the calls for each message."""
        before = self.sums()
        host = action()
        after = self.sums()
        found: dict[str, Any] = {"host_us": host, **{thread: {} for thread in THREADS}}
        for key, (calls, took) in after.items():
            thread, name = key.split(".")
            made = calls - before[key][0]
            if made:
                each = (took - before[key][1]) / made / 1e3
                found[thread][name] = [round(made / count, 2), round(each, 3)]
        return found


def messages(me: Any, size: int, count: int) -> dict[str, float]:
    """Post `count` messages from rank 0 to rank 1, then wait: microseconds for each."""
    import torch
    import torch.distributed as dist

    import gpus

    buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    post = dist.isend if me.rank == 0 else dist.irecv
    gpus.settle()
    me.barrier()
    start = time.perf_counter()
    works = [post(buffer, 1 - me.rank, group=me.groups["ours"]) for buffer in buffers]
    posted = time.perf_counter()
    for work in works:
        work.wait()
    waited = time.perf_counter()
    gpus.settle()
    me.barrier()
    each = 1e6 / count
    return {"post": round((posted - start) * each, 2), "wait": round((waited - posted) * each, 2)}


def reads(me: Any, cache: Any) -> dict[str, float]:
    """Read batches of pages at rank 1: microseconds for each."""
    seconds = sum(cache.read() for _ in range(BATCHES))
    return {"read": round(seconds / BATCHES * 1e6, 1)}


def work(me: Any) -> None:
    """Count in a rank; rank 1 leaves the answers of both."""
    import gpus
    from gpu.figures import traffic

    counter = Counter()
    gpus.use(me.rank)
    found: dict[str, dict[str, Any]] = {}
    for part, (size, whole) in PARTS.items():
        count = max(8, whole // traffic.SCALE)
        messages(me, size, count)  # connects, maps and allocates
        found[part] = counter.during(lambda s=size, n=count: messages(me, s, n), count)  # type: ignore[misc]
    cache = traffic.Cache(me, me.groups["ours"], max(2, PAGES // traffic.SCALE))
    cache.read()
    found["pages"] = counter.during(lambda: reads(me, cache), BATCHES)
    cache.check()
    cache.close()
    both = me.share(found)
    if me.rank == 1:
        findings = Findings("calls.")
        for part, of_receiver in found.items():
            for role, values in (("sender", both[0][part]), ("receiver", of_receiver)):
                findings.answer(**{f"{part}.{role}.{key}": value for key, value in values.items()})


def main() -> None:
    """Compile the library, or count the calls of two ranks."""
    if sys.argv[1:2] == ["compile"]:
        compile_to(Path(sys.argv[2]))
        return
    from measuring.harness import run_job

    if "DLSLIME_CUDA_LIBRARY" in os.environ:
        os.environ[REAL_LIBRARY] = os.environ["DLSLIME_CUDA_LIBRARY"]
    os.environ["DLSLIME_CUDA_LIBRARY"] = os.environ[LIBRARY]
    cores = sorted(os.sched_getaffinity(0))
    run_job(work, (), backends={"ours": "dlslime"}, cores=cores, deadline=DEADLINE_S)


if __name__ == "__main__":
    main()
