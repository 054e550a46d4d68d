"""Messages and transfers between two ranks on GPUs, against what one GPU's own copies take.

    python benchmarks/gpu_check.py     # builds, tests, and runs this

Figures are medians of rounds, in which ours and the limit take turns; where there is a GPU for
each rank, NCCL does as well. Without a GPU (DLSLIME_TEST_GPUS not "real") the fake driver's show
only that this runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "python"))

import torch
import torch.distributed as dist

import dlslime_backend
import gpus
from harness import PayloadError, Rank, run_job
from report import Figure, at_least, line, size_name, summary

MIB = 1 << 20
PAGE = 16 << 10
PAGES = 2048
QUIET = 1000  # exchanges that are watched by the profiler
ROUNDS = 7
SCALE = 1 if gpus.REAL else 64  # the fake driver copies by a processor


def at_most_us(value: float, most: float) -> dict[str, Any]:
    """Target of a time in microseconds."""
    return {"ratio": None, "target": f"< {most:g} us", "ok": value < most}


def pattern(size: int, seed: int) -> torch.Tensor:
    """Bytes of which none is where it would be if some were lost."""
    return torch.arange(size, device="cuda").add(seed).remainder(251).to(torch.uint8)


def check(received: torch.Tensor, seed: int) -> None:
    """Raises PayloadError: these are not the pattern's bytes."""
    if not torch.equal(received.cpu(), pattern(received.numel(), seed).cpu()):
        raise PayloadError(f"{received.numel()} bytes that were not sent")


def limit(size: int, count: int) -> float:
    """Seconds for `count` copies of so many bytes within a GPU's memory."""
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    gpus.settle()
    start = time.perf_counter()
    for _ in range(count):
        target.copy_(source, non_blocking=True)
    gpus.settle()
    return time.perf_counter() - start


def stream_of_messages(me: Rank, group: dist.ProcessGroup, size: int, count: int) -> float:
    """Seconds from the first post to the last byte of `count` messages, at the receiver."""
    seed = time.time_ns() % 200 if me.rank == 0 else 0
    buffer = pattern(size, seed) if me.rank == 0 else torch.zeros_like(pattern(size, 0))
    gpus.settle()
    me.barrier()
    start = time.perf_counter()
    post = dist.isend if me.rank == 0 else dist.irecv
    works = [post(buffer, 1 - me.rank, group=group) for _ in range(count)]
    for work in works:
        work.wait()
    gpus.settle()
    seconds = time.perf_counter() - start
    if me.rank == 0:
        me.store.set(f"seed {size}", str(seed))
    me.barrier()
    if me.rank == 1:
        check(buffer, int(me.store.get(f"seed {size}")))
    return seconds


def ping_pong(me: Rank, group: dist.ProcessGroup, size: int, count: int) -> float:
    """Seconds one way, from stream to stream."""
    buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
    gpus.settle()
    me.barrier()
    start = time.perf_counter()
    for _ in range(count):
        if me.rank == 0:
            dist.send(buffer, 1, group=group)
            dist.recv(buffer, 1, group=group)
        else:
            dist.recv(buffer, 0, group=group)
            dist.send(buffer, 0, group=group)
        gpus.settle()
    return (time.perf_counter() - start) / count / 2


def host_times(me: Rank, group: dist.ProcessGroup, size: int, count: int) -> tuple[float, float]:
    """Median seconds that the host spends in one isend() or irecv(), and in one wait()."""
    buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    post = dist.isend if me.rank == 0 else dist.irecv
    gpus.settle()
    me.barrier()
    posts, waits, works = [], [], []
    for buffer in buffers:
        start = time.perf_counter()
        works.append(post(buffer, 1 - me.rank, group=group))
        posts.append(time.perf_counter() - start)
    for work in works:
        start = time.perf_counter()
        work.wait()
        waits.append(time.perf_counter() - start)
    gpus.settle()
    return median(posts), median(waits)


class Cache:
    """Registered pages of one rank, and the other's."""

    def __init__(self, me: Rank, group: dist.ProcessGroup, pages: int) -> None:
        self.pages = pages
        self.memory = pattern(pages * PAGE, me.rank)
        self.region = dlslime_backend.register(self.memory, name="pages")
        exported: list[bytes] = [b"", b""]
        dist.all_gather_object(exported, self.region.export(), group=group)
        self.remote = dlslime_backend.import_region(exported[1 - me.rank])
        self.peer = dlslime_backend.peer(1 - me.rank, group)

    def read(self) -> float:
        """Seconds of one batch, every page to another place."""
        here = torch.arange(self.pages)
        start = time.perf_counter()
        self.peer.read(self.region, self.remote, (here, here.flip(0), PAGE)).wait()
        return time.perf_counter() - start


def quiet(me: Rank, group: dist.ProcessGroup) -> dict[str, int]:
    """Counts what a profiler sees in a loop of exchanges: kernels, and waits of the host."""
    from torch.profiler import ProfilerActivity, profile

    mine, theirs = (torch.zeros(MIB, dtype=torch.uint8, device="cuda") for _ in range(2))
    gpus.settle()
    me.barrier()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(QUIET):
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, mine, 1 - me.rank, group=group),
                    dist.P2POp(dist.irecv, theirs, 1 - me.rank, group=group),
                ]
            ):
                work.wait()
    names = {entry.key: entry.count for entry in profiler.key_averages()}
    copies = sum(count for name, count in names.items() if name.startswith("Memcpy"))
    kernels = {
        entry.key
        for entry in profiler.key_averages()
        if str(entry.device_type).endswith("CUDA")
        and not entry.key.startswith(("Memcpy", "Memset"))
    }
    waits = sum(count for name, count in names.items() if "Synchronize" in name)
    return {"kernels": len(kernels), "host_waits": waits, "copies": copies}


def turns(me: Rank, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Samples of every way, which take turns."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, once in ways.items():
            me.barrier()
            value = once()
            if number > 0:  # the first warms up
                samples[name].append(value)
    return samples


def both_limits(me: Rank, size: int, count: int) -> float:
    """The limit by rank 1 while rank 0 waits: they may share the GPU."""
    seconds = limit(size, count) if me.rank == 1 else 0.0
    me.barrier()
    return seconds


def bandwidth(me: Rank, size: int, count: int) -> dict[str, list[float]]:
    """Seconds of `count` messages by every backend, and of as many copies."""
    ways: dict[str, Callable[[], float]] = {"limit": lambda: both_limits(me, size, count)}
    for slot, group in me.groups.items():
        ways[slot] = lambda g=group: stream_of_messages(me, g, size, count)  # type: ignore[misc]
    return turns(me, ways)


def batches(me: Rank, group: dist.ProcessGroup) -> dict[str, list[float]]:
    """Seconds of a batch of pages, and of one copy of as many bytes."""
    pages = PAGES // SCALE
    cache = Cache(me, group, pages)
    found = turns(
        me,
        {
            "limit": lambda: both_limits(me, pages * PAGE, 1),
            "ours": lambda: cache.read() if me.rank == 1 else 0.0,
        },
    )
    me.barrier()
    if me.rank == 1 and not torch.equal(
        cache.memory.cpu().view(pages, PAGE),
        pattern(pages * PAGE, 0).cpu().view(pages, PAGE).flip(0),
    ):
        raise PayloadError("pages that are not the peer's")
    me.barrier()
    cache.region.deregister()
    return found


def work_pages(me: Rank) -> dict[str, Any]:
    """Batches of pages alone, in one rank."""
    gpus.use(me.rank)
    ours = me.groups["ours"]
    found = batches(me, ours)
    return {"pages": found, "route": dlslime_backend.stats(ours)["peers"][1 - me.rank]}


def work(me: Rank) -> dict[str, Any]:
    """Everything, in one rank."""
    gpus.use(me.rank)
    out: dict[str, Any] = {}
    out["256 MiB"] = bandwidth(me, 256 * MIB // SCALE, 4)
    out["1 MiB"] = bandwidth(me, MIB, 256 // SCALE)
    for size in (8, 1024, 8192):
        ways = {
            slot: lambda g=group, s=size: ping_pong(me, g, s, 400 // SCALE)  # type: ignore[misc]
            for slot, group in me.groups.items()
        }
        out[f"one way {size_name(size)}"] = turns(me, ways)
    ours = me.groups["ours"]
    times = [host_times(me, ours, 8192, 200 // SCALE) for _ in range(ROUNDS)]
    out["isend"] = {"ours": [entry[0] for entry in times]}
    out["wait"] = {"ours": [entry[1] for entry in times]}
    out["pages"] = batches(me, ours)
    if gpus.REAL:
        out["quiet"] = quiet(me, ours)
    out["route"] = dlslime_backend.stats(ours)["peers"][1 - me.rank]
    return out


def rate_figure(name: str, samples: dict[str, list[float]], nbytes: int, least: float) -> Figure:
    """Bandwidth against the limit's."""
    rates = {slot: nbytes / median(values) / 1e9 for slot, values in samples.items()}
    details = {slot: summary(values, 1e6) for slot, values in samples.items()}
    ratio = rates["ours"] / rates["limit"]
    return Figure(
        "gpu",
        name,
        "GB/s",
        rates["ours"],
        rates["limit"],
        **at_least(ratio, least),
        details=details,
    )


def pages_figure(name: str, receiver: dict[str, Any]) -> Figure:
    """Batches of pages against one copy."""
    return rate_figure(name, receiver["pages"], PAGES // SCALE * PAGE, 0.6)


def figures(values: list[dict[str, Any]]) -> list[Figure]:
    """The figures with their targets, of what both ranks measured."""
    sender, receiver = values
    out = [
        rate_figure("256 MiB", receiver["256 MiB"], 4 * (256 * MIB // SCALE), 0.95),
        rate_figure("1 MiB, back to back", receiver["1 MiB"], 256 // SCALE * MIB, 0.7),
        pages_figure("2,048 pages of 16 KiB", receiver),
    ]
    for name in sender:
        if not name.startswith("one way"):
            continue
        times = {slot: median(found) * 1e6 for slot, found in sender[name].items()}
        out.append(
            Figure(
                "gpu", name, "us", times["ours"], times.get("nccl"), **at_most_us(times["ours"], 12)
            )
        )
    for name, most in (("isend", 8), ("wait", 5)):
        value = median(sender[name]["ours"]) * 1e6
        out.append(Figure("gpu", f"host in {name}()", "us", value, None, **at_most_us(value, most)))
    for name in ("kernels", "host_waits"):
        if "quiet" in sender:
            count = sender["quiet"][name] + receiver["quiet"][name]
            text = f"{name} in {QUIET} exchanges"
            out.append(
                Figure("gpu", text, "", count, None, None, "0", count == 0, details=sender["quiet"])
            )
    return out


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--pages", default="", help="measure batches of pages alone, under this name"
    )
    options = parser.parse_args()
    backends = {"ours": "dlslime"}
    if gpus.REAL and torch.cuda.device_count() > 1 and dist.is_nccl_available():
        backends["nccl"] = "nccl"
    cores = sorted(os.sched_getaffinity(0))
    one = work_pages if options.pages else work
    values = run_job(one, backends=backends, cores=cores, deadline=240)
    found = [pages_figure(options.pages, values[1])] if options.pages else figures(values)
    for figure in found:
        print(line(figure), flush=True)
    options.json.write_text(
        json.dumps(
            {
                "figures": [vars(figure) for figure in found],
                "scale": SCALE,
                "route": values[0]["route"]["route"],
                "traffic": {str(i): value["route"] for i, value in enumerate(values)},
            },
            indent=1,
            default=str,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
