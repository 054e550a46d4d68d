"""Registered memory, here and at peers, and which parts of it a transfer moves."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from dlslime_backend._load import extension

Array: TypeAlias = Any  # a numpy array, or a tensor, of integers
# Every piece is (local offset, remote offset, length), all in bytes. As lists, or as three arrays;
# two arrays of page numbers and the bytes of a page; None is all of two regions of equal size.
Pieces: TypeAlias = (
    Sequence[tuple[int, int, int]] | tuple[Array, Array, Array] | tuple[Array, Array, int] | None
)


def register(memory: torch.Tensor | tuple[int, int], name: str = "") -> Region:
    """Make memory of this process readable and writable for those who get its handle.

    Args:
        memory: a contiguous tensor of any shape and dtype, on a CPU or a CUDA GPU, whose storage is
            kept until `Region.deregister`; or (address, bytes) of memory that the caller keeps
            until then.
        name: for the texts of errors.

    Raises:
        ValueError: the tensor is not contiguous, or on another device; or the address can't be.
    """
    core = extension().Region
    if isinstance(memory, torch.Tensor):
        return Region(core.of_tensor(memory, name))
    return Region(core.of_memory(*memory, name))


def import_region(exported: bytes) -> RemoteRegion:
    """Return another process's region, of what its `Region.export` returned.

    Raises:
        ValueError: these bytes are not of it, or of another version of dlslime.
    """
    return RemoteRegion(extension().RemoteRegion(exported))


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
    return local._core, remote._core, core_pieces(pieces)


def core_pieces(pieces: Pieces) -> Any:
    """Return what the extension takes of pieces."""
    if type(pieces) is list or pieces is None:  # the quick way for a few pieces
        return pieces
    # A tuple of three arrays, and not three pieces in a tuple.
    if not isinstance(pieces, tuple) or (pieces and isinstance(pieces[0], tuple)):
        return list(pieces)
    return tuple([_as_tensor(entry) for entry in pieces])


def _as_tensor(entry: Any) -> Any:
    if isinstance(entry, torch.Tensor):  # of one element it would be a number, too
        return entry
    try:
        return operator.index(entry)
    except TypeError:
        return torch.as_tensor(entry)
