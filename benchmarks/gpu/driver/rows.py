"""The calls of the lock matrix's rows: calls that a program may make while a stream waits.

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
LAUNCHES = 5000 if REAL else 1200  # more than the capacity of a launch queue
# Rows with longer calls or preparations, and the factor.
PATIENCE = {"nvrtc": 16, "many_launches": 2, "many_copies": 2, "ipc_open": 1, "ipc_close": 1}


def new_stream() -> Any:
    """Return a new stream of torch."""
    import gpus

    return gpus.stream()


def default_stream() -> Any:
    """Return torch's default stream, used by programs that name no stream."""
    import torch

    import gpus

    if gpus.REAL:
        return torch.cuda.default_stream()
    return torch.Stream(stream_id=0, device_index=0, device_type=1)


def raw(stream: Any) -> int:
    """Return the driver's handle of a stream of torch."""
    return int(getattr(stream, "cuda_stream", stream.stream_id))


def current(stream: Any) -> contextlib.AbstractContextManager[object]:
    """Make a stream current on the calling thread for a while."""
    import gpus

    return gpus.on(stream)


Row = Callable[[Any], Callable[[], Any]]


def _nothing(_: Any) -> Callable[[], Any]:
    """Return the control: the columns' times without another call."""
    return lambda: None


def _with_room(worker: Any, tensor: Any) -> Any:
    """Return the tensor after giving torch's cache for the held stream room for a result."""
    with current(worker.held):
        tensor.clone()
    worker.cuda.settle(raw(worker.held))
    return tensor


def _late_launch(worker: Any) -> Callable[[], Any]:
    """Launch a kernel of torch not yet launched by the process."""
    import torch

    values = _with_room(worker, sharing.tensor(4000).float())
    return lambda: torch.nn.functional.gelu(values)


def _many_launches(_: Any) -> Callable[[], Any]:
    """Launch more kernels than a launch queue takes."""
    target = sharing.tensor(4000)
    target.add_(1)  # loads the kernel

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
    """Copy to memory that is not pinned."""
    values = sharing.tensor(4000)
    return lambda: values.cpu()


def _item(_: Any) -> Callable[[], Any]:
    values = sharing.tensor(1)
    values.item()  # torch pins memory for the call once
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
    """Load PTX, which the driver translates."""

    def load() -> None:
        module = worker.cuda.number("cuModuleLoadData", PTX, of=ctypes.c_void_p)
        worker.cuda.number("cuModuleGetFunction", module, b"dlslime_spin", of=ctypes.c_void_p)

    return load


def _nvrtc(worker: Any) -> Callable[[], Any]:
    """Launch a kernel of torch that is compiled at its first launch."""
    import torch

    values = _with_room(worker, sharing.tensor(4000).float())
    return lambda: torch.special.bessel_j0(values)


def _map(worker: Any) -> Callable[[], Any]:
    """Map memory in the way of torch's expandable segments."""
    cuda = worker.cuda

    def make() -> None:
        base = cuda.number("cuMemAddressReserve", sharing.PIECE, 0, 0, 0)
        sharing.map_piece(cuda, base, sharing.PIECE, sharing.create_piece(cuda, sharing.PIECE))

    return make


def _handle_of_peer(worker: Any) -> api.Handle:
    """Return a new handle of a peer, which lives until the calling process ends."""
    peer = sharing.Peer("exporter")
    worker.kept.append(peer)
    return api.Handle.from_buffer_copy(bytes.fromhex(peer.answer()["handle"]))


def _ipc_open(worker: Any) -> Callable[[], Any]:
    """Open a peer's memory by its handle."""
    handle = _handle_of_peer(worker)
    return lambda: worker.cuda.number("cuIpcOpenMemHandle_v2", handle, 1)


def _ipc_close(worker: Any) -> Callable[[], Any]:
    """Close the only opening of a peer's memory."""
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
