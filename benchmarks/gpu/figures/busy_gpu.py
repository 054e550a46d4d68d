"""Whether messages move while a kernel has all of the GPU's processors.

    python benchmarks/gpu/figures/busy_gpu.py

The absence of kernels in a profile proves nothing: a copy within a GPU is called Memcpy, by
processors or by a copy engine. Here a kernel spins on every processor of the receiver's GPU until
told to end, or for SPIN_S; a message that comes meanwhile has been copied by a copy engine. The
driver's own copies are tried alongside: within a GPU the driver may copy by processors, but between
two GPUs by a copy engine. Answers: "busy.FIELD".
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "python"))

import torch
import torch.distributed as dist

import gpus
from gpu.driver import api, rows, sharing
from gpu.driver.api import Batch, Driver, DriverError
from gpu.runner.findings import Findings
from measuring.harness import Rank, run_job

SPIN_S = 10.0
PATIENCE_S = 2.0  # for the messages, while the kernel spins
CONTROL_S = 1.5  # for each of the driver's own copies
SIZES = (1 << 10, 4 << 20)  # an eager message, and a message by CUDA IPC
COPY = 4 << 20  # bytes of each of the driver's own copies
THREADS, BLOCKS = 1024, 2  # as many as a processor takes


class Control:
    """A copy by the driver on a stream of its own; made once before the kernel spins."""

    def __init__(self, cuda: Driver, copy: Callable[[int], None]) -> None:
        self._cuda, self._copy = cuda, copy
        self._stream, self._event = cuda.stream(), cuda.event()
        self.refusal = ""
        try:
            self.moves()
            cuda.settle(self._stream)
        except (DriverError, AttributeError) as error:
            self.refusal = str(error)

    def moves(self) -> bool:
        """Tell whether the copy ends within CONTROL_S."""
        self._copy(self._stream)
        self._cuda.call("cuEventRecord", self._event, self._stream)
        return self._cuda.within(CONTROL_S, self._event)


class Spinning:
    """A kernel that has all processors of the GPU, and copies to try meanwhile."""

    def __init__(self) -> None:
        cuda = self._cuda = Driver(torch.cuda.current_device() if gpus.REAL else 0)
        self._words = sharing.Words()
        self._words.register(cuda)
        self._stream, self._end = cuda.stream(), cuda.event()
        module = cuda.number("cuModuleLoadData", rows.PTX, of=ctypes.c_void_p)
        self._function = cuda.number(
            "cuModuleGetFunction", module, b"dlslime_spin", of=ctypes.c_void_p
        )
        source, target = cuda.allocate(COPY), cuda.allocate(COPY)
        pinned = cuda.number("cuMemHostAlloc", COPY, 0, of=ctypes.c_void_p)

        def batch(flags: int) -> Callable[[int], None]:
            return Batch(cuda, [target], [source], COPY, flags).enqueue

        self._controls = {
            "plain_copy_moves": Control(cuda, lambda at: cuda.copy(target, source, COPY, at)),
            "batch_moves": Control(cuda, batch(0)),
            "overlapping_batch_moves": Control(cuda, batch(1)),
            "copy_from_pinned_moves": Control(cuda, lambda at: cuda.copy(target, pinned, COPY, at)),
        }

    def start(self) -> None:
        """Launch the kernel, and wait until the kernel runs."""
        word, value = ctypes.c_uint64(self._words.device), ctypes.c_uint32(1)
        limit = ctypes.c_uint64(int(SPIN_S * 1e9))
        addresses = (ctypes.addressof(word), ctypes.addressof(value), ctypes.addressof(limit))
        parameters = (ctypes.c_void_p * 3)(*addresses)
        processors = self._cuda.attribute(api.ATTRIBUTES["multiprocessor_count"])
        grid = (processors * BLOCKS, 1, 1, THREADS, 1, 1)
        self._cuda.call("cuLaunchKernel", self._function, *grid, 0, self._stream, parameters, None)
        self._cuda.call("cuEventRecord", self._end, self._stream)
        time.sleep(0.2)

    def spins(self) -> bool:
        """Tell whether the kernel still has the processors."""
        return not self._cuda.within(0, self._end)

    def controls(self) -> dict[str, bool | str]:
        """Tell which of the driver's copies move under the kernel, or why that is not known."""
        found: dict[str, bool | str] = {}
        for name, control in self._controls.items():
            if control.refusal:
                found[name] = control.refusal
                continue
            moved = control.moves()
            found[name] = moved if self.spins() else "the kernel had ended"
        return found

    def stop(self) -> None:
        """End the kernel."""
        self._words.store(0, 1)
        self._cuda.settle(self._stream)


def receive(me: Rank, tensors: list[torch.Tensor]) -> None:
    """Receive while the kernel spins, and leave the answers."""
    findings = Findings("busy.")
    spinning = Spinning()
    spinning.start()
    works = [dist.irecv(tensor, 0) for tensor in tensors]
    me.barrier()
    begin = time.monotonic()
    while not all(work.is_completed() for work in works):
        if time.monotonic() - begin > PATIENCE_S:
            break
        time.sleep(0.001)
    ended = [work.is_completed() for work in works]
    still = spinning.spins()
    findings.answer(
        small_message_moves=ended[0],
        large_message_moves=ended[1],
        kernel_still_spins=still,
        proved=all(ended) and still,
        ms=round((time.monotonic() - begin) * 1e3, 2),
    )
    findings.answer(**spinning.controls())
    spinning.stop()
    for work in works:
        work.wait()


def work(me: Rank) -> None:
    """Send or receive two messages, in a rank."""
    gpus.use(me.rank)
    tensors = [torch.full((size,), me.rank + 1, dtype=torch.uint8, device="cuda") for size in SIZES]
    exchange = [torch.zeros_like(tensor) for tensor in tensors]
    for tensor in exchange:  # makes connections and mappings before
        (dist.send if me.rank == 0 else dist.recv)(tensor, 1 - me.rank)
    gpus.settle()
    me.barrier()
    if me.rank == 1:
        receive(me, tensors)
        for tensor in tensors:
            if not tensor.cpu().eq(1).all():
                raise RuntimeError("bytes that were not sent")
    else:
        me.barrier()
        for each in [dist.isend(tensor, 1) for tensor in tensors]:
            each.wait()
        gpus.settle()


if __name__ == "__main__":
    cores = sorted(os.sched_getaffinity(0))
    run_job(work, backends={"ours": "dlslime"}, cores=cores, deadline=60)
