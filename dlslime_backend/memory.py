"""Registered memory of this process and of peers, and the pieces moved by a transfer."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from dlslime_backend._load import extension

# The argument of `register`.
Memory: TypeAlias = Any
Array: TypeAlias = Any  # a numpy array or a tensor, of integers
# Pieces are (local offset, remote offset, length), in bytes: a list of tuples, an array [N, 3], or
# three arrays [N]. Or pages: two arrays [N] of local and remote page numbers, and the bytes of a
# page. None means the whole of two regions of equal size. Arrays are int64 or int32, on the CPU.
Pieces: TypeAlias = (
    Sequence[tuple[int, int, int]]
    | Array
    | tuple[Array, Array, Array]
    | tuple[Array, Array, int]
    | None
)


def register(memory: Memory, name: str = "", access: str | None = None) -> Region:
    """Make memory of this process accessible to processes that get the handle of the region.

    Args:
        memory: a contiguous tensor of any shape and dtype, on a CPU or a CUDA GPU; a C-contiguous
            numpy array; or an object with a buffer (bytes, bytearray, memoryview, mmap, ctypes).
            The region keeps the object until `Region.deregister`. Or (address, bytes) of mapped
            memory, which the caller keeps until `Region.deregister`.
        name: for error messages.
        access: "read" allows reads only, "write" reads and writes. None is "write", or "read" for
            an object with a read-only buffer.

    Returns:
        The region; `Region.export` makes the handle for other processes.

    Raises:
        ValueError: the memory is not contiguous or on another device; the address range is
            impossible or not mapped; the memory is read-only and `access` is "write"; or `access`
            is unknown.
        TypeError: `memory` or `name` has another type.
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
    """Return the region of another process from the bytes of its `Region.export`.

    Raises:
        ValueError: the bytes are no handle, or the handle of another version of dlslime.
        TypeError: `exported` is not bytes.
    """
    return RemoteRegion(extension().RemoteRegion(as_bytes(exported, "the handle of a region")))


def as_bytes(value: bytes | bytearray | memoryview, what: str) -> bytes:
    """Return a bytes-like value as bytes.

    Raises:
        TypeError: the value has another type. The text shows the type only, since the content may
            give access to memory.
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
        # memoryview does not know all dtypes of numpy, and empty arrays have no strides.
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
    """Properties of a region, local or remote."""

    def __init__(self, core: Any) -> None:
        self._core = core

    @property
    def address(self) -> int:
        """Address of the first byte, in the process that owns the memory."""
        return int(self._core.address)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self._core.nbytes)

    @property
    def name(self) -> str:
        """The name given to `register`."""
        return str(self._core.name)


class Region(_Memory):
    """Registered memory of this process; made by `register`."""

    def export(self) -> bytes:
        """Return the handle as bytes, for `import_region` of other processes.

        Every holder of the handle may access the memory, as far as `register` allowed.
        """
        exported: bytes = self._core.export()
        return exported

    @property
    def device(self) -> torch.device:
        """Device of the memory: the CPU or a CUDA GPU."""
        device: torch.device = self._core.device
        return device

    def bytes_at(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return a part of the memory as a uint8 tensor [nbytes], without a copy.

        The tensor is valid until `deregister`. The tensor of a read-only region must not be
        written.

        Args:
            offset: of the first byte.
            nbytes: length of the part.

        Raises:
            ValueError: the part is not inside of the region.
        """
        view: torch.Tensor = self._core.bytes_at(offset, nbytes)
        return view

    def deregister(self, timeout: float = 10.0) -> None:
        """End the access of other processes; after the call, the memory is no longer touched.

        Asks the peers to give the region back; a peer does when its transfers have ended. Later
        transfers with the region fail. Does nothing the second time.

        Args:
            timeout: seconds to wait for peers, 0 to 100 years.

        Raises:
            ValueError: transfers of this process use the region, or the time-out is out of range;
                the region stays registered.
            TimeoutError: a peer has not given the region back in time; the region stays registered.
        """
        self._core.deregister(timeout)


class RemoteRegion(_Memory):
    """Registered memory of another process; made by `import_region`."""

    @property
    def pid(self) -> int:
        """Process number of the owner, on the owner's host."""
        return int(self._core.pid)

    @property
    def host(self) -> str:
        """Host name of the owner."""
        return str(self._core.host)


def core_part(local: Region, remote: RemoteRegion, pieces: Pieces) -> tuple[Any, Any, Any]:
    """Return a pair of regions and its pieces in the form that the extension takes.

    Raises:
        TypeError: an argument has another type.
    """
    try:
        cores = local._core, remote._core
    except AttributeError:
        raise TypeError(
            "dlslime: a transfer is between a Region and a RemoteRegion, not between "
            f"{_kind(local)} and {_kind(remote)}"
        ) from None
    return *cores, core_pieces(pieces)


def core_pieces(pieces: Pieces) -> Any:
    """Return pieces in the form that the extension takes: a list, tensors, or None.

    Raises:
        TypeError: the argument is neither a list nor arrays nor None.
    """
    if type(pieces) is list or pieces is None:  # fast path for a few pieces
        return pieces
    if isinstance(pieces, torch.Tensor) or hasattr(pieces, "__array__"):
        return _as_tensor(pieces)
    # A tuple of arrays; a tuple of tuples has pieces.
    if isinstance(pieces, tuple) and not (pieces and isinstance(pieces[0], tuple)):
        return tuple([_as_tensor(entry) for entry in pieces])
    if not isinstance(pieces, Iterable) or isinstance(pieces, (str, bytes, bytearray)):
        raise TypeError(f"dlslime: pieces are a list, arrays or None, not {_kind(pieces)}")
    return list(pieces)


def _as_tensor(entry: Any) -> Any:
    if isinstance(entry, torch.Tensor):  # a tensor of one element also converts to an integer
        return entry
    try:
        return operator.index(entry)
    except TypeError:
        pass
    try:
        # torch can't view arrays with negative strides.
        copy = hasattr(entry, "strides") and any(stride < 0 for stride in entry.strides)
        return torch.as_tensor(entry.copy() if copy else entry)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"dlslime: offsets, lengths and pages are integer arrays, not {_kind(entry)}"
        ) from None
