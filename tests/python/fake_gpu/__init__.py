"""Tensors on "cuda" without a GPU or CUDA: over the driver of tests/cpp/fake_cuda.

A process calls `use()` once, before any use of CUDA; the first call compiles all libraries.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

_ROOT = Path(__file__).resolve().parents[3]
_BUILD = _ROOT / "build" / "fake_gpu"
_HERE = Path(__file__).resolve().parent
_extension: ModuleType | None = None


def driver() -> Path:
    """Return the path of the fake driver, compiled again if sources are newer."""
    library = _BUILD / "libcuda.so.1"
    folder = _ROOT / "tests" / "cpp" / "fake_cuda"
    sources = sorted(folder.glob("*.cpp"))
    headers = [*folder.glob("*.h"), _ROOT / "csrc" / "cuda" / "driver" / "cuda_api.h"]
    newest = max(path.stat().st_mtime for path in [*sources, *headers])
    if not library.exists() or library.stat().st_mtime < newest:
        _BUILD.mkdir(parents=True, exist_ok=True)
        # A folder of its own, since another process may compile the driver, too.
        with tempfile.TemporaryDirectory(dir=_BUILD) as scratch:
            made = Path(scratch) / library.name
            command = ["c++", "-std=c++20", "-O1", "-g1", "-fPIC", "-shared", "-pthread"]
            command += [f"-I{_ROOT / 'csrc'}", f"-I{folder.parent}", "-o", str(made)]
            subprocess.run([*command, *map(str, sources)], check=True)
            made.replace(library)
    return library


def settle() -> None:
    """Wait for the current stream, while other threads may give the stream more work."""
    event = torch.Event(device="cuda:0")
    event.record()
    while not event.query():
        time.sleep(50e-6)


def use() -> ModuleType:
    """Give the process two fake GPUs; return the extension, which has `empty_cache`."""
    global _extension
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "mutex").open("w") as lock:  # a single process compiles; "lock" is torch's own
        fcntl.flock(lock, fcntl.LOCK_EX)
        # torch's lock, left behind for ever by a process killed amid compiling
        (_BUILD / "lock").unlink(missing_ok=True)
        os.environ["DLSLIME_CUDA_LIBRARY"] = str(driver())
        extension: ModuleType = cpp_extension.load(
            name="fake_gpu_device",
            sources=[str(_HERE / f"{name}.cpp") for name in ("device", "memory", "nccl")],
            extra_include_paths=[str(_ROOT / "csrc"), str(_ROOT / "tests" / "cpp")],
            extra_cflags=["-O0", "-std=c++20"],
            build_directory=str(_BUILD),
        )
    torch.cuda._lazy_init = lambda: None  # would raise: torch has no CUDA
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 2
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.synchronize = lambda device=None: settle()
    _extension = extension
    return extension


class NcclOptions:
    """The attributes that users set in `dist.ProcessGroupNCCL.Options`."""

    _timeout: timedelta
    global_ranks_in_group: list[int]
    group_name: str


def use_nccl() -> list[NcclOptions]:
    """Give torch a substitute of NCCL; return the options of groups made from now on."""
    assert _extension is not None
    extension = _extension
    made: list[NcclOptions] = []

    class ProcessGroupNCCL:
        Options = NcclOptions

        def __new__(
            cls, store: dist.Store, rank: int, size: int, options: NcclOptions
        ) -> ProcessGroupNCCL:
            made.append(options)
            carrier = dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
            backend: ProcessGroupNCCL = extension.nccl(carrier)
            return backend

    dist.is_nccl_available = lambda: True
    dist.ProcessGroupNCCL = ProcessGroupNCCL
    return made


@contextlib.contextmanager
def on(stream: torch.Stream) -> Iterator[None]:
    """Make a stream current for a while: torch's own `with stream` needs a build with CUDA."""
    assert _extension is not None
    before = _extension.exchange_stream(stream.device_index, stream.stream_id)
    try:
        yield
    finally:
        _extension.exchange_stream(stream.device_index, before)


@contextlib.contextmanager
def capturing(stream: torch.Stream) -> Iterator[None]:
    """Make a stream current for a while, reported by the driver as being captured into a graph."""
    capture = ctypes.CDLL(os.environ["DLSLIME_CUDA_LIBRARY"]).fakeCudaCapture
    with on(stream):
        capture(ctypes.c_void_p(stream.stream_id))
        try:
            yield
        finally:
            capture(None)
