"""The ranks' work in `startup.py`, and the process from which a sample's ranks are forked."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing as mp
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dlslime_backend._backend  # noqa: F401 - or init would import it
from dlslime_backend._load import extension
from measuring.harness import OPERATION_TIMEOUT, JobError, PayloadError, gather

clock = time.monotonic  # a common clock for all processes of a host

STEPS = ["init", "message", "all_reduce"]
NUMBERS = 64  # of 8 bytes, in the message and in the all_reduce
HEAD_START = 0.05  # until then all ranks have woken up, and sleep until a common time


@dataclass
class Sample:
    """A job.

    Attributes:
        seconds: limit of the job's time.
        answer: the file for the ranks' results: ``{"ranks": [...]}`` or ``{"error": "..."}``.
    """

    world: int
    backend: str
    seconds: float
    answer: str


def _lookups() -> int:
    """Return the process's look-ups so far, by limit/resolver.c; 0 if not preloaded."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(None), "resolver_lookups").value
    except ValueError:
        return 0


def _expect(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    wrong = (got != expected).nonzero().flatten().tolist()
    if wrong:
        raise PayloadError(f"{what}: {len(wrong)} numbers are wrong, the first at {wrong[0]}")


def _measure(rank: int, sample: Sample, meet: Callable[[], None]) -> dict[str, Any]:
    """Return start and end of each step at the rank, and its look-ups after init and at the end."""
    world, backend = sample.world, sample.backend
    base = torch.arange(NUMBERS)
    mine, got, total = base + rank, torch.zeros_like(base), base + rank
    right, left = (rank + 1) % world, (rank - 1) % world

    def message() -> None:
        works: list[Any] = [dist.isend(mine, right), dist.irecv(got, left)]
        for work in works:
            work.wait()

    steps: dict[str, Callable[[], Any]] = {
        "init": lambda: dist.init_process_group(backend, timeout=OPERATION_TIMEOUT),
        "message": message,
        "all_reduce": lambda: dist.all_reduce(total),
    }
    found: dict[str, Any] = {}
    for name in STEPS:
        meet()
        begin = clock()
        steps[name]()
        found[name] = (begin, clock())
        found.setdefault("lookups_init", _lookups())
    found["lookups"] = _lookups()
    _expect(got, base + left, f"{backend}: message to rank {rank}")
    _expect(total, base * world + world * (world - 1) // 2, f"{backend}: all_reduce, rank {rank}")
    meet()
    dist.destroy_process_group()
    return found


def _rank(rank: int, sample: Sample, meet: Callable[[], None], results: Any) -> None:
    torch.set_num_threads(1)
    gc.collect()  # writes to most objects: the first write to a page after a fork copies the page
    try:
        results.put((rank, "ok", _measure(rank, sample, meet)))
    except PayloadError as error:
        results.put((rank, "payload", str(error)))
    except Exception as error:  # noqa: BLE001 - the launcher has to hear of any error
        results.put((rank, "error", f"{type(error).__name__}: {error}"))


def _serve() -> dist.TCPStore:
    """Start the store's server, in the parent of the ranks as in torchrun.

    The server looks up one client after the other; slow look-ups would hide all other times.
    """
    if os.environ["RESOLVER"] == "silent":
        os.environ["RESOLVER"] = "prompt"  # in the launcher only: the ranks have been forked
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def launch(sample: Sample) -> None:
    """Fork the ranks while the process has a single thread, and write the ranks' answer."""
    extension()  # loaded before as is Gloo, a part of torch
    context = mp.get_context("fork")
    port, begin = context.RawValue("i"), context.RawValue("d")
    serving = context.Event()

    def set_begin() -> None:
        begin.value = clock() + HEAD_START

    barrier = context.Barrier(sample.world, set_begin, sample.seconds)

    def meet() -> None:
        barrier.wait()
        time.sleep(max(0.0, begin.value - clock()))

    def work(rank: int) -> None:
        serving.wait(sample.seconds)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.value)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        _rank(rank, sample, meet, results)

    results = context.Queue()
    ranks = [context.Process(target=work, args=(rank,)) for rank in range(sample.world)]
    for process in ranks:
        process.start()
    store = _serve()
    port.value = store.port
    serving.set()
    try:
        answer: dict[str, Any] = {"ranks": gather(ranks, results, sample.seconds)}
    except (PayloadError, JobError) as error:
        kind = "wrong data" if isinstance(error, PayloadError) else "failed"
        answer = {"error": f"{kind}: {error}"}
    Path(sample.answer).write_text(json.dumps(answer))


if __name__ == "__main__":
    launch(Sample(**json.loads(sys.argv[1])))
