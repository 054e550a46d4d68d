"""Behaviour of the CUDA driver beyond its documentation, without dlslime.

    python benchmarks/gpu/driver/probe.py           # all cases, each in a process
    python benchmarks/gpu/driver/probe.py remap     # one case

docs/cuda.md gives the meaning of each answer ("driver.CASE.FIELD") for dlslime.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.driver import api, sharing
from gpu.driver.api import Batch, Driver, DriverError
from gpu.driver.sharing import MIB, PIECE
from gpu.runner import cases
from gpu.runner.findings import Findings


def outcome(action: Callable[[], Any]) -> str:
    """Return "ok" for a successful call, else the driver's name of the error."""
    try:
        action()
    except DriverError as error:
        return str(error).split(": ", 1)[1]
    except AttributeError:
        return "the driver has no such function"
    return "ok"


# --- cases of one process -------------------------------------------------------------------------


def device(findings: Findings) -> None:
    """Answer with the driver's attributes of the driver and of the GPU."""
    cuda = Driver()
    name = ctypes.create_string_buffer(100)
    cuda.call("cuDeviceGetName", name, len(name), cuda.device)
    values: dict[str, Any] = {key: cuda.attribute(number) for key, number in api.ATTRIBUTES.items()}
    version = cuda.number("cuDriverGetVersion", of=ctypes.c_int)
    begin = time.perf_counter()
    for _ in range(1000):
        cuda.function("cuDriverGetVersion")(ctypes.byref(ctypes.c_int()))
    values["python_call_us"] = round((time.perf_counter() - begin) * 1e3, 2)
    findings.answer(name=name.value.decode(), version=version, **values)


def told(cuda: Driver, attribute: int, pointer: int) -> int | str:
    """Return an attribute of memory, or the driver's reason for giving none."""
    try:
        return cuda.pointer_attribute(attribute, pointer)
    except DriverError as error:
        return str(error)


class Space:
    """Reserved addresses, with pieces mapped inside."""

    def __init__(self, cuda: Driver, size: int) -> None:
        self.cuda = cuda
        self.base = cuda.number("cuMemAddressReserve", size, 0, 0, 0)

    def map(self, at: int) -> int:
        """Map a new piece, and return its handle."""
        handle = sharing.create_piece(self.cuda, PIECE)
        sharing.map_piece(self.cuda, self.base + at, PIECE, handle)
        return handle

    def replace(self, at: int, handle: int) -> int:
        """Map another piece at an address; return its handle."""
        self.cuda.call("cuMemUnmap", self.base + at, PIECE)
        self.cuda.call("cuMemRelease", handle)
        return self.map(at)

    def id_at(self, at: int) -> int:
        """Return the buffer id at an offset."""
        return self.cuda.pointer_attribute(api.BUFFER_ID, self.base + at)

    def block_at(self, at: int) -> int | str:
        """Return the id of the memory block at an offset, or the reason for having none."""
        return told(self.cuda, api.BLOCK_ID, self.base + at)

    def handle_at(self, at: int) -> int:
        """Return the driver's handle of the piece at an offset, which is held from then on."""
        return self.cuda.number("cuMemRetainAllocationHandle", self.base + at)


def remap(findings: Findings) -> None:
    """Answer whether another piece at an address shows, by buffer id and by handle."""
    cuda = Driver()
    space = Space(cuda, 4 * PIECE)
    first, _ = space.map(0), space.map(PIECE)
    before, block, handle = space.id_at(0), space.block_at(0), space.handle_at(0)
    again = space.handle_at(0)
    base, size = cuda.address_range(space.base + PIECE + 100)
    findings.answer(
        buffer_id_differs_between_pieces=before != space.id_at(PIECE),
        handle_is_equal_when_asked_again=handle == again,
        range_is_the_piece=(base, size) == (space.base + PIECE, PIECE),
        range_attribute_is_the_piece=(
            cuda.pointer_attribute(api.RANGE_START, base),
            cuda.pointer_attribute(api.RANGE_SIZE, base),
        )
        == (base, PIECE),
    )
    findings.answer(
        mapping_is_the_piece=told(cuda, api.MAPPING_BASE, base) == base
        and told(cuda, api.MAPPING_SIZE, base) == PIECE,
        block_id=block,
    )
    space.replace(0, first)
    findings.answer(
        buffer_id_differs=before != space.id_at(0),
        block_id_differs=block != space.block_at(0),
        handle_differs=handle != space.handle_at(0),
    )


def reuse(findings: Findings) -> None:
    """Answer whether memory allocated at a freed address has another buffer id."""
    cuda = Driver()
    first = cuda.allocate(4 * PIECE)
    before, block = (told(cuda, name, first) for name in (api.BUFFER_ID, api.BLOCK_ID))
    cuda.call("cuMemFree_v2", first)
    second = cuda.allocate(4 * PIECE)
    findings.answer(
        same_address=first == second,
        buffer_id_differs=before != told(cuda, api.BUFFER_ID, second),
        block_id_differs=block != told(cuda, api.BLOCK_ID, second),
    )


def registered(findings: Findings) -> None:
    """Answer whether shared memory can be registered, and whether a stream writes words there."""
    cuda = Driver()
    with sharing.Words() as words:
        findings.answer(register=outcome(lambda: words.register(cuda)))
        stream = cuda.stream()
        findings.answer(
            address_is_the_host_s=words.device == words.address,
            write=outcome(lambda: cuda.call("cuStreamWriteValue32_v2", stream, words.device, 7, 0)),
        )
        cuda.settle(stream)
        findings.answer(host_sees_it=words.load(0) == 7)


def expandable(findings: Findings) -> None:
    """Answer how torch's expandable segments can be shared."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    tensor = sharing.tensor(64 * MIB)
    cuda = Driver()
    pointer = tensor.data_ptr()
    _, size = cuda.address_range(pointer)
    types = cuda.pointer_attribute(api.HANDLE_TYPES, pointer)
    handle = cuda.number("cuMemRetainAllocationHandle", pointer)
    made = ctypes.c_int(-1)
    room = api.Handle()
    export = "cuMemExportToShareableHandle"
    findings.answer(
        piece_bytes=size,
        handle_types=types,
        legacy_ipc=bool(cuda.pointer_attribute(api.LEGACY_IPC_CAPABLE, pointer)),
        descriptor=outcome(
            lambda: cuda.call(export, ctypes.byref(made), handle, api.DESCRIPTOR, 0)
        ),
        fabric=outcome(lambda: cuda.call(export, ctypes.byref(room), handle, api.FABRIC, 0)),
    )


def dma_buf(findings: Findings) -> None:
    """Answer whether memory of a GPU can be handed to a NIC as a dma-buf."""
    cuda = Driver()
    pointer = cuda.allocate(PIECE)
    made = ctypes.c_int(-1)
    call = "cuMemGetHandleForAddressRange"
    findings.answer(
        export=outcome(lambda: cuda.call(call, ctypes.byref(made), pointer, PIECE, 1, 0))
    )


# --- batches of copies ----------------------------------------------------------------------------


class Moved:
    """Pieces of 4 KiB, and a batch that copies the pieces in the opposite order."""

    SIZE = 4096

    def __init__(self, cuda: Driver, count: int) -> None:
        size = self.SIZE
        self._cuda, self._count = cuda, count
        self._stream = cuda.stream()
        source, self._target = cuda.allocate(count * size), cuda.allocate(count * size)
        self._pieces = [number.to_bytes(4, "little") * (size // 4) for number in range(count)]
        cuda.write(source, b"".join(self._pieces), self._stream)
        places = range(0, count * size, size)
        self._batch = Batch(
            cuda,
            (self._target + at for at in reversed(places)),
            (source + at for at in places),
            size,
        )

    def enqueue(self) -> str:
        """Enqueue the batch, and return the outcome."""
        return outcome(lambda: self._batch.enqueue(self._stream))

    def settle(self) -> str:
        """Wait for the batch, and return the outcome."""
        return outcome(lambda: self._cuda.settle(self._stream))

    def right(self) -> bool:
        """Tell whether each piece is in its place."""
        moved = self._cuda.read(self._target, self._count * self.SIZE, self._stream)
        return moved == b"".join(reversed(self._pieces))


def _batch(findings: Findings, count: int) -> None:
    """Run a batch of `count` copies."""
    moved = Moved(Driver(), count)
    moved.enqueue()  # so that the measured call is no first call
    moved.settle()
    begin = time.perf_counter()
    result = moved.enqueue()
    call_s = time.perf_counter() - begin
    settled = moved.settle()
    whole_s = time.perf_counter() - begin
    findings.answer(
        result=result,
        settled=settled,
        right=result == settled == "ok" and moved.right(),
        call_us_per_copy=round(call_s * 1e6 / count, 3),
        us_per_copy=round(whole_s * 1e6 / count, 3),
    )


CASES: dict[str, cases.Case] = {
    "device": device,
    "remap": remap,
    "reuse": reuse,
    "registered": registered,
    "dma_buf": dma_buf,
    "ipc_small": sharing.ipc_small,
    "ipc_twice": sharing.ipc_twice,
    "ipc_freed": sharing.ipc_freed,
    "descriptor": sharing.descriptor,
    "expandable": expandable,
    "batch_1024": lambda findings: _batch(findings, 1024),
    "batch_8192": lambda findings: _batch(findings, 8192),
    "batch_60000": lambda findings: _batch(findings, 60000),
}

if __name__ == "__main__":
    sys.exit(sharing.peer_main() or cases.main("driver.", CASES, 12))
