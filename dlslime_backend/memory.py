"""Registered memory, here and at peers, and which parts of it a transfer moves."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from dlslime_backend._load import extension

# What `register` takes: see there.
Memory: TypeAlias = Any
Array: TypeAlias = Any  # a numpy array, or a tensor, of integers
# Every piece is (local offset, remote offset, length), all in bytes: as a list, as an array [N, 3],
# or as three arrays [N]. Or two arrays [N] of page numbers and the bytes of a page. None is all of
# two regions of equal size. Arrays are int64 or int32, on the CPU.
Pieces: TypeAlias = (
    Sequence[tuple[int, int, int]]
    | Array
    | tuple[Array, Array, Array]
    | tuple[Array, Array, int]
    | None
)


def register(memory: Memory, name: str = "", access: str | None = None) -> Region:
    """Make memory of this process readable and writable for those who get its handle.

    Args:
        memory: a contiguous tensor of any shape and dtype, on a CPU or a CUDA GPU; a C-contiguous
            numpy array; or what else exports a buffer (bytes, bytearray, memoryview, mmap, ctypes),
            each of which is kept until `Region.deregister`. Or (address, bytes) of mapped memory
            that the caller keeps until then.
        name: for the texts of errors.
        access: "read" lets others only read it; "write" lets them do both; None is "write" where
            the memory itself is not read-only.

    Raises:
        ValueError: it is not contiguous, or on another device; no such memory can be, or nothing
            is mapped there; or it is read-only and `access` is "write".
        TypeError: it is nothing of this.
    """
    core = extension().Region
    if not isinstance(name, str):
        raise TypeError(f"dlslime: the name of memory is a str, not {_kind(name)}")
    if access not in (None, "read", "write"):
        raise ValueError('dlslime: access is "read", "write" or None')
    read_only = access == "read"
    if isinstance(memory, torch.Tensor):
        return Region(core.of_tensor(memory, name, read_only))
    if isinstance(memory, (tuple, list)):
        return Region(core.of_memory(*_address_and_bytes(memory), name, read_only))
    view = _buffer_of(memory)
    if view.readonly and access == "write":
        raise ValueError(f"dlslime: the memory of {_kind(memory)} is read-only: pass access='read'")
    return Region(core.of_buffer(view, name, read_only or view.readonly))


def import_region(exported: bytes | bytearray | memoryview) -> RemoteRegion:
    """Return another process's region, of what its `Region.export` returned.

    Raises:
        ValueError: these bytes are not of it, or of another version of dlslime.
        TypeError: they are not bytes.
    """
    return RemoteRegion(extension().RemoteRegion(as_bytes(exported, "the handle of a region")))


def as_bytes(value: bytes | bytearray | memoryview, what: str) -> bytes:
    """Return what came through a socket as bytes.

    Raises:
        TypeError: it is something else, which is not printed: it may give access to memory.
    """
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"dlslime: {what} is bytes, not {_kind(value)}")
    return bytes(value)


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _address_and_bytes(pair: Sequence[Any]) -> list[int]:
    if len(pair) == 2 and not any(isinstance(entry, torch.Tensor) for entry in pair):
        try:
            return [operator.index(entry) for entry in pair]
        except TypeError:
            pass
    kinds = ", ".join(type(entry).__name__ for entry in pair[:3])
    raise TypeError(
        "dlslime: a tuple or list is (address, bytes), two integers, and not "
        f"{len(pair)} objects ({kinds}{', ...' if len(pair) > 3 else ''})"
    )


def _buffer_of(memory: Any) -> memoryview:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(memory, numpy.ndarray):
        if memory.dtype.hasobject:
            raise TypeError("dlslime: a numpy array of objects has only their addresses")
        if not memory.flags.c_contiguous:
            raise ValueError("dlslime: the numpy array is not C-contiguous: register a copy of it")
        # Not all dtypes are known to buffers, and what is empty has no strides.
        empty = bytearray() if memory.flags.writeable else b""
        memory = memory.reshape(-1).view(numpy.uint8) if memory.size else empty
    try:
        view = memoryview(memory)
    except (TypeError, BufferError):
        raise TypeError(
            "dlslime: memory is a tensor, a numpy array, a buffer or (address, bytes), not "
            + _kind(memory)
        ) from None
    if not view.c_contiguous:
        raise ValueError("dlslime: the buffer is not C-contiguous: register a copy of it")
    if view.nbytes == 0:
        return memoryview(b"" if view.readonly else bytearray())
    return view.cast("B")


class _Memory:
    """What registered memory tells of itself, at both ends."""

    def __init__(self, core: Any) -> None:
        self._core = core

    @property
    def address(self) -> int:
        """Where it begins in its process."""
        return int(self._core.address)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(self._core.nbytes)

    @property
    def name(self) -> str:
        """As given to `register`."""
        return str(self._core.name)


class Region(_Memory):
    """Registered memory of this process; made by `register`."""

    def export(self) -> bytes:
        """Return what a peer's `import_region` takes. Who has it may read and write the memory."""
        exported: bytes = self._core.export()
        return exported

    @property
    def device(self) -> torch.device:
        """Whose memory it is: of processors, or of which GPU."""
        device: torch.device = self._core.device
        return device

    def bytes_at(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return a part of it as a uint8 tensor [nbytes], which is good until `deregister`.

        Of read-only memory it must not be written.

        Raises:
            ValueError: that is not inside of it.
        """
        view: torch.Tensor = self._core.bytes_at(offset, nbytes)
        return view

    def deregister(self, timeout: float = 10.0) -> None:
        """Take the memory back: when this returns, nobody touches it any more.

        Peers are asked to let go of it, and do when their transfers with it are over. Later ones
        fail. Does nothing the second time.

        Raises:
            ValueError: transfers of this process with it go on; the region stays.
            TimeoutError: a peer has not let go within `timeout` seconds; the region stays.
        """
        self._core.deregister(timeout)


class RemoteRegion(_Memory):
    """Memory of another process; made by `import_region`."""

    @property
    def pid(self) -> int:
        """The process that it belongs to, as numbered on its host."""
        return int(self._core.pid)

    @property
    def host(self) -> str:
        """The host of that process."""
        return str(self._core.host)


def core_part(local: Region, remote: RemoteRegion, pieces: Pieces) -> tuple[Any, Any, Any]:
    """Return what the extension takes of one pair of regions."""
    try:
        cores = local._core, remote._core
    except AttributeError:
        raise TypeError(
            "dlslime: a transfer is between a Region and a RemoteRegion, not between "
            f"{_kind(local)} and {_kind(remote)}"
        ) from None
    return *cores, core_pieces(pieces)


def core_pieces(pieces: Pieces) -> Any:
    """Return what the extension takes of pieces."""
    if type(pieces) is list or pieces is None:  # the quick way for a few pieces
        return pieces
    if isinstance(pieces, torch.Tensor) or hasattr(pieces, "__array__"):
        return _as_tensor(pieces)
    # A tuple of three arrays, and not three pieces in a tuple.
    if isinstance(pieces, tuple) and not (pieces and isinstance(pieces[0], tuple)):
        return tuple([_as_tensor(entry) for entry in pieces])
    if not isinstance(pieces, Iterable) or isinstance(pieces, (str, bytes, bytearray)):
        raise TypeError(f"dlslime: pieces are a list, arrays or None, not {_kind(pieces)}")
    return list(pieces)


def _as_tensor(entry: Any) -> Any:
    if isinstance(entry, torch.Tensor):  # of one element it would be a number, too
        return entry
    try:
        return operator.index(entry)
    except TypeError:
        pass
    try:
        # What numpy walks backwards is more than torch can.
        copy = hasattr(entry, "strides") and any(stride < 0 for stride in entry.strides)
        return torch.as_tensor(entry.copy() if copy else entry)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"dlslime: offsets, lengths and pages are integer arrays, not {_kind(entry)}"
        ) from None
