"""The calls of the lock matrix's rows: what a program may do while one of its streams waits.

Each entry of `ROWS` prepares itself before the stream is held, and returns the call to make.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.driver import api, sharing
from gpu.driver.sharing import MIB

PTX = (Path(__file__).parent / "spin.ptx").read_bytes()
REAL = os.environ.get("DLSLIME_TEST_GPUS") == "real"
LAUNCHES = 5000 if REAL else 1200  # more than a launch queue takes
# Rows that take longer, or are prepared for longer, and how many times.
PATIENCE = {"nvrtc": 16, "many_launches": 2, "many_copies": 2, "ipc_open": 1, "ipc_close": 1}


def new_stream() -> Any:
    """Return a stream of torch's."""
    import gpus

    return gpus.stream()


def default_stream() -> Any:
    """Return torch's default stream, which a program uses that names none."""
    import torch

    import gpus

    if gpus.REAL:
        return torch.cuda.default_stream()
    return torch.Stream(stream_id=0, device_index=0, device_type=1)


def raw(stream: Any) -> int:
    """Return the driver's handle of a stream of torch's."""
    return int(getattr(stream, "cuda_stream", stream.stream_id))


def current(stream: Any) -> contextlib.AbstractContextManager[object]:
    """Make it the calling thread's current stream for a while."""
    import gpus

    return gpus.on(stream)


Row = Callable[[Any], Callable[[], Any]]


def _nothing(_: Any) -> Callable[[], Any]:
    """The control: what the columns take when no other call is made."""
    return lambda: None


def _with_room(worker: Any, tensor: Any) -> Any:
    """Return the tensor when its result fits what torch has cached for the held stream."""
    with current(worker.held):
        tensor.clone()
    worker.cuda.settle(raw(worker.held))
    return tensor


def _late_launch(worker: Any) -> Callable[[], Any]:
    """One of torch's kernels that this process has not launched yet."""
    import torch

    values = _with_room(worker, sharing.tensor(4000).float())
    return lambda: torch.nn.functional.gelu(values)


def _many_launches(_: Any) -> Callable[[], Any]:
    """More kernels than a launch queue takes."""
    target = sharing.tensor(4000)
    target.add_(1)  # it is loaded then

    def launch() -> None:
        for _ in range(LAUNCHES):
            target.add_(1)

    return launch


def _many_copies(_: Any) -> Callable[[], Any]:
    source, target = sharing.tensor(4000), sharing.tensor(4000)

    def launch() -> None:
        for _ in range(LAUNCHES):
            target.copy_(source, non_blocking=True)

    return launch


def _cpu(_: Any) -> Callable[[], Any]:
    """A copy to memory that is not pinned."""
    values = sharing.tensor(4000)
    return lambda: values.cpu()


def _item(_: Any) -> Callable[[], Any]:
    values = sharing.tensor(1)
    values.item()  # torch pins memory for it once
    return lambda: values.item()


def _malloc(worker: Any) -> Callable[[], Any]:
    return lambda: worker.cuda.allocate(64 * MIB)


def _free(worker: Any) -> Callable[[], Any]:
    pointer = worker.cuda.allocate(64 * MIB)
    return lambda: worker.cuda.call("cuMemFree_v2", pointer)


def _host_malloc(worker: Any) -> Callable[[], Any]:
    return lambda: worker.cuda.number("cuMemHostAlloc", MIB, 0, of=ctypes.c_void_p)


def _host_free(worker: Any) -> Callable[[], Any]:
    pointer = worker.cuda.number("cuMemHostAlloc", MIB, 0, of=ctypes.c_void_p)
    return lambda: worker.cuda.call("cuMemFreeHost", pointer)


def _host_register(worker: Any) -> Callable[[], Any]:
    words = sharing.Words()
    worker.kept.append(words)
    return lambda: words.register(worker.cuda)


def _stream_creation(worker: Any) -> Callable[[], Any]:
    return lambda: worker.cuda.stream()


def _module_load(worker: Any) -> Callable[[], Any]:
    """PTX, which the driver translates and loads."""

    def load() -> None:
        module = worker.cuda.number("cuModuleLoadData", PTX, of=ctypes.c_void_p)
        worker.cuda.number("cuModuleGetFunction", module, b"dlslime_spin", of=ctypes.c_void_p)

    return load


def _nvrtc(worker: Any) -> Callable[[], Any]:
    """A kernel of torch's that is compiled when it is launched first."""
    import torch

    values = _with_room(worker, sharing.tensor(4000).float())
    return lambda: torch.special.bessel_j0(values)


def _map(worker: Any) -> Callable[[], Any]:
    """Memory mapped as torch's expandable segments are."""
    cuda = worker.cuda

    def make() -> None:
        base = cuda.number("cuMemAddressReserve", sharing.PIECE, 0, 0, 0)
        sharing.map_piece(cuda, base, sharing.PIECE, sharing.create_piece(cuda, sharing.PIECE))

    return make


def _handle_of_peer(worker: Any) -> api.Handle:
    """Return a handle of a peer's, which lives until this process ends; another one each time."""
    peer = sharing.Peer("exporter")
    worker.kept.append(peer)
    return api.Handle.from_buffer_copy(bytes.fromhex(peer.answer()["handle"]))


def _ipc_open(worker: Any) -> Callable[[], Any]:
    """A peer's memory, opened by its handle."""
    handle = _handle_of_peer(worker)
    return lambda: worker.cuda.number("cuIpcOpenMemHandle_v2", handle, 1)


def _ipc_close(worker: Any) -> Callable[[], Any]:
    """The only opening of a peer's memory, closed."""
    pointer = worker.cuda.number("cuIpcOpenMemHandle_v2", _handle_of_peer(worker), 1)
    return lambda: worker.cuda.call("cuIpcCloseMemHandle", pointer)


ROWS: dict[str, Row] = {
    "nothing": _nothing,
    "late_launch": _late_launch,
    "many_launches": _many_launches,
    "many_copies": _many_copies,
    "cpu": _cpu,
    "item": _item,
    "malloc": _malloc,
    "free": _free,
    "host_malloc": _host_malloc,
    "host_free": _host_free,
    "host_register": _host_register,
    "stream_creation": _stream_creation,
    "module_load": _module_load,
    "nvrtc": _nvrtc,
    "map": _map,
    "ipc_open": _ipc_open,
    "ipc_close": _ipc_close,
}
