"""NVTX ranges of messages, with torch's build for CUDA; run by torchrun with two ranks.

torchrun --standalone --nproc-per-node 2 tests/python/smoke/smoke_nvtx.py LIBRARY

LIBRARY is nvtx_ranges.cpp, compiled. No GPU is needed: emit_nvtx() asks for one, and switches on
what is switched on here.
"""

from __future__ import annotations

import ctypes
import os
import sys

os.environ["NVTX_INJECTION64_PATH"] = sys.argv[1]  # read at the first range

import torch
import torch.distributed as dist
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.autograd import _disable_profiler, _enable_profiler


def message(rank: int, tensor: torch.Tensor) -> None:
    with_shapes = True
    config = ProfilerConfig(
        ProfilerState.NVTX, with_shapes, False, False, False, False, _ExperimentalConfig()
    )
    _enable_profiler(config, set())
    try:
        (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank)
    finally:
        _disable_profiler()


def ranges() -> list[str]:
    library = ctypes.CDLL(sys.argv[1])
    library.nvtxRanges.restype = ctypes.c_char_p
    lines: str = library.nvtxRanges().decode()
    return lines.splitlines()


def main() -> None:
    dist.init_process_group("dlslime")
    rank = dist.get_rank()
    message(rank, torch.ones(1000))
    found = ranges()
    name = "dlslime:send" if rank == 0 else "dlslime:recv"
    (begun,) = (place for place, line in enumerate(found) if line.startswith(f"{name},"))
    assert "sizes = [[1000]]" in found[begun], found[begun]
    rest = found[begun:]
    assert rest.count("end") >= sum(line != "end" for line in rest), f"{name} does not end: {rest}"
    dist.destroy_process_group()
    if rank == 0:
        print(f"NVTX ranges of torch {torch.__version__} tell messages of dlslime")


if __name__ == "__main__":
    main()
