"""Memory of GPUs between two processes, by plain driver calls: the probe's cases with a peer.

The owner starts the peer and answers its lines; a peer's process is `PROGRAM --peer NAME`, with its
questions on standard output and the answers on standard input, each a line of JSON.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "python"))

from gpu.driver import api
from gpu.driver.api import Driver, DriverError
from gpu.runner.findings import Findings

KIB = 1 << 10
MIB = 1 << 20
PIECE = 2 * MIB
_OPEN, _GETFD = 434, 438  # system calls pidfd_open and pidfd_getfd, equal on all processors


@functools.cache
def _use_gpu() -> None:
    import gpus  # of the tests: makes a fake GPU on a machine without a GPU

    gpus.use(0)


def tensor(size: int) -> Any:
    """Return a tensor of `size` bytes on the GPU."""
    import torch

    _use_gpu()
    return torch.zeros(size, dtype=torch.uint8, device="cuda")


def create_piece(cuda: Driver, size: int) -> int:
    """Return the handle of new physical memory that may be shared by a descriptor."""
    here = api.Location(api.DEVICE_LOCATION, cuda.device)
    wanted = api.Properties(type=1, handle_types=api.DESCRIPTOR, location=here)
    return cuda.number("cuMemCreate", size, ctypes.byref(wanted), 0)


def map_piece(cuda: Driver, pointer: int, size: int, handle: int) -> None:
    """Map physical memory at an address, for the driver's GPU."""
    cuda.call("cuMemMap", pointer, size, 0, handle, 0)
    here = api.Location(api.DEVICE_LOCATION, cuda.device)
    access = api.Access(here, api.READ_AND_WRITE)
    cuda.call("cuMemSetAccess", pointer, size, ctypes.byref(access), 1)


class Words:
    """A page of 32-bit words shared by processes, and by streams after the registration."""

    def __init__(self, file: int | None = None) -> None:
        self.file = os.memfd_create("words") if file is None else file
        if file is None:
            os.ftruncate(self.file, mmap.PAGESIZE)
        self._memory = mmap.mmap(self.file, mmap.PAGESIZE)
        self._words = (ctypes.c_uint32 * (mmap.PAGESIZE // 4)).from_buffer(self._memory)
        self.address = ctypes.addressof(self._words)
        self.device = 0  # the address for streams

    def __enter__(self) -> Words:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def register(self, cuda: Driver) -> None:
        """Register the page with the driver.

        Raises:
            DriverError: the page can't be registered.
        """
        flags = api.REGISTER_PORTABLE_AND_MAPPED
        cuda.call("cuMemHostRegister_v2", self.address, mmap.PAGESIZE, flags)
        self.device = cuda.number("cuMemHostGetDevicePointer_v2", self.address, 0)

    def load(self, index: int) -> int:
        """Return a word."""
        return int(self._words[index])

    def store(self, index: int, value: int) -> None:
        """Set a word: a stream that waits for the value goes on, without a call to the driver."""
        self._words[index] = value


class Peer:
    """Another process, with a `Driver` of its own."""

    def __init__(self, name: str, **given: Any) -> None:
        command = [sys.executable, sys.argv[0], "--peer", name, json.dumps(given)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def answer(self) -> dict[str, Any]:
        """Return the peer's next line; nothing if the peer has died."""
        assert self._process.stdout is not None
        said: dict[str, Any] = json.loads(self._process.stdout.readline() or b"{}")
        return said

    def tell(self, **what: Any) -> None:
        """Give the peer an answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()


def say(**what: Any) -> None:
    """Print a line for the parent."""
    print(json.dumps(what), flush=True)


def _open(cuda: Driver, handle: str) -> tuple[int, str]:
    """Open an IPC handle; return the address, and "ok" or the driver's word."""
    pointer = ctypes.c_uint64()
    given = api.Handle.from_buffer_copy(bytes.fromhex(handle))
    code = cuda.function("cuIpcOpenMemHandle_v2")(ctypes.byref(pointer), given, 1)
    return pointer.value, "ok" if code == api.SUCCESS else cuda.name_of(code)


def _export(cuda: Driver, pointer: int) -> str:
    made = api.Handle()
    cuda.call("cuIpcGetMemHandle", ctypes.byref(made), pointer)
    return bytes(made).hex()


# --- cases, each with its peer --------------------------------------------------------------------


def ipc_small(findings: Findings) -> None:
    """Answer where a peer finds a small buffer cut from a larger block."""
    cuda = Driver()
    stream = cuda.stream()
    size = 64 * KIB
    buffers = [cuda.allocate(size) for _ in range(4)]
    for number, pointer in enumerate(buffers):
        cuda.write(pointer, bytes([number + 1]) * size, stream)
    base, length = cuda.address_range(buffers[2])
    findings.answer(
        range_offset=buffers[2] - base,
        range_bytes=length,
        range_attribute_bytes=cuda.pointer_attribute(api.RANGE_SIZE, buffers[2]),
        neighbours_are_of_one_block=abs(buffers[2] - buffers[1]) < PIECE,
    )
    handles = [_export(cuda, pointer) for pointer in buffers]
    findings.answer(handles_of_neighbours_differ=handles[1] != handles[2])
    said = Peer("ipc_small", handles=handles, size=size).answer()
    findings.answer(**{f"peer_{name}": value for name, value in said.items()})


def _ipc_small_peer(handles: list[str], size: int) -> None:
    cuda = Driver()
    stream = cuda.stream()
    pointer, result = _open(cuda, handles[2])
    if result != "ok":
        say(open=result)
        return
    base, length = cuda.address_range(pointer)
    neighbour, second = _open(cuda, handles[1])
    say(
        open=result,
        opened_offset_in_range=pointer - base,
        range_bytes=length,
        buffer_offset_in_range=cuda.read(base, length, stream).find(bytes([3]) * size),
        open_of_neighbour=second,
        neighbour_distance=neighbour - pointer,
    )


def ipc_twice(findings: Findings) -> None:
    """Answer how a second opening of a handle ends, in a peer and in the owner."""
    cuda = Driver()
    handle = _export(cuda, cuda.allocate(PIECE))
    findings.answer(open_in_its_own_process=_open(cuda, handle)[1])
    findings.answer(**Peer("ipc_twice", handle=handle).answer())


def _ipc_twice_peer(handle: str) -> None:
    cuda = Driver()
    stream = cuda.stream()
    first, _ = _open(cuda, handle)
    second, again = _open(cuda, handle)
    cuda.call("cuIpcCloseMemHandle", first)
    try:
        cuda.read(first, 8, stream)
        readable = "ok"
    except DriverError as error:
        readable = str(error)
    say(
        open_again=again,
        again_at_the_same_address=first == second,
        readable_after_one_close=readable,
    )


def ipc_freed(findings: Findings) -> None:
    """Answer how a peer sees freed memory, and memory allocated at the freed address."""
    cuda = Driver()
    stream = cuda.stream()
    first = cuda.allocate(4 * PIECE)
    cuda.write(first, b"\1" * 64, stream)
    peer = Peer("ipc_freed", handle=_export(cuda, first))
    peer.answer()
    cuda.call("cuMemFree_v2", first)
    second = cuda.allocate(4 * PIECE)
    cuda.write(second, b"\2" * 64, stream)
    peer.tell(handle=_export(cuda, second))
    findings.answer(same_address=first == second, **peer.answer())


def _ipc_freed_peer(handle: str) -> None:
    cuda = Driver()
    stream = cuda.stream()
    first, _ = _open(cuda, handle)
    say(ready=True)
    given = json.loads(sys.stdin.readline())
    second, result = _open(cuda, given["handle"])
    seen = list(cuda.read(second, 1, stream)) if result == "ok" else None
    say(open_of_the_new=result, new_at_the_same_address=first == second, new_content=seen)


def descriptor(findings: Findings) -> None:
    """Answer whether a peer that is no child gets a piece by pidfd_getfd, and sees its bytes."""
    cuda = Driver()
    stream = cuda.stream()
    handle = create_piece(cuda, PIECE)
    base = cuda.number("cuMemAddressReserve", PIECE, 0, 0, 0)
    map_piece(cuda, base, PIECE, handle)
    cuda.write(base, b"\5" * 64, stream)
    made = ctypes.c_int(-1)
    cuda.call("cuMemExportToShareableHandle", ctypes.byref(made), handle, api.DESCRIPTOR, 0)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    findings.answer(ptrace_scope=scope.read_text().strip() if scope.exists() else "none")
    findings.answer(**Peer("descriptor", pid=os.getpid(), number=made.value).answer())


def _descriptor_peer(pid: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    process = libc.syscall(_OPEN, pid, 0)
    if process < 0:
        say(pidfd_getfd=f"pidfd_open: {os.strerror(ctypes.get_errno())}")
        return
    file = libc.syscall(_GETFD, process, number, 0)
    if file < 0:
        say(pidfd_getfd=os.strerror(ctypes.get_errno()))
        return
    cuda = Driver()
    stream = cuda.stream()
    try:
        handle = cuda.number(
            "cuMemImportFromShareableHandle", ctypes.c_void_p(file), api.DESCRIPTOR
        )
        base = cuda.number("cuMemAddressReserve", PIECE, 0, 0, 0)
        map_piece(cuda, base, PIECE, handle)
        say(pidfd_getfd="ok", imported="ok", right=cuda.read(base, 64, stream) == b"\5" * 64)
    except DriverError as error:
        say(pidfd_getfd="ok", imported=str(error))


def _exporter() -> None:
    """Share memory until the process is ended."""
    cuda = Driver()
    say(handle=_export(cuda, cuda.allocate(PIECE)))
    sys.stdin.readline()


_PEERS: dict[str, Callable[..., None]] = {
    "ipc_small": _ipc_small_peer,
    "ipc_twice": _ipc_twice_peer,
    "ipc_freed": _ipc_freed_peer,
    "descriptor": _descriptor_peer,
    "exporter": _exporter,
}


def peer_main() -> int | None:
    """Run a peer, if the command line makes the process a peer."""
    if len(sys.argv) != 4 or sys.argv[1] != "--peer":
        return None
    _PEERS[sys.argv[2]](**json.loads(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # damage so far may make the driver's own end wait
