"""Lists of descriptors, made from every form in which programs describe memory."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import numpy as np
import torch

from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.memory import Region

MEMORY = {
    "DRAM": b.DRAM_SEG,
    "VRAM": b.VRAM_SEG,
    "FILE": b.FILE_SEG,
    "BLOCK": b.BLK_SEG,
    "OBJ": b.OBJ_SEG,
    "cpu": b.DRAM_SEG,
    "cuda": b.VRAM_SEG,
}
KINDS = {b.DRAM_SEG: "cpu", b.VRAM_SEG: "cuda"}  # torch's names of the supported kinds
_logger = logging.getLogger("dlslime.nixl")
_List = TypeVar("_List", b.nixlXferDList, b.nixlRegDList)


class Descriptors:
    """The part of an agent that makes lists of descriptors."""

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> b.nixlXferDList | None:
        """Make a list for transfers.

        Args:
            descs: [(address, bytes, device)], a contiguous tensor or a list of tensors, uint64 [N,
                3], or a list for transfers, returned as it is.
            mem_type: a key of `MEMORY`; required without tensors.

        Returns:
            The list; None if `descs` has another form, with a line in the log.

        Raises:
            KeyError: `mem_type` is unknown.
        """
        return _made(b.nixlXferDList, b.nixlRegDList, 3, descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> b.nixlRegDList | None:
        """Make a list for registration, as `get_xfer_descs`; tuples have a text as fourth field."""
        return _made(b.nixlRegDList, b.nixlXferDList, 4, descs, mem_type)

    def get_serialized_descs(self, descs: b.nixlXferDList | b.nixlRegDList) -> bytes:
        """Return a list as bytes, for another process."""
        return b.serialized(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> b.nixlXferDList | b.nixlRegDList:
        """Return the list from the bytes of `get_serialized_descs`.

        Raises:
            nixlMismatchError: the bytes are no list of descriptors.
        """
        return b.deserialized(serialized_descs)


def _made(
    kind: type[_List], other: type[Any], width: int, descs: Any, mem_type: str | None
) -> _List | None:
    if isinstance(descs, kind):
        return descs
    if isinstance(descs, other):
        _logger.error("a %s is needed, not a %s", kind.__name__, other.__name__)
        return None
    tensors = [descs] if isinstance(descs, torch.Tensor) else descs
    if not isinstance(descs, np.ndarray) and isinstance(tensors[0], torch.Tensor):
        return _of_tensors(kind, tensors)
    if mem_type is None:
        _logger.error("without tensors the kind of memory must be given")
        return None
    if isinstance(descs, np.ndarray):
        fits = descs.ndim == 2 and descs.shape[1] == 3
    else:
        fits = isinstance(descs[0], tuple) and len(descs[0]) == width
    if not fits:
        _logger.error("a descriptor has %d fields, or a row of an array 3", width)
        return None
    return kind(MEMORY[mem_type], descs)


def _of_tensors(kind: type[_List], tensors: Any) -> _List | None:
    if any(not entry.is_contiguous() or entry.device != tensors[0].device for entry in tensors):
        _logger.error("tensors of one list are contiguous, and on one device")
        return None
    memory = b.DRAM_SEG if tensors[0].device.type == "cpu" else b.VRAM_SEG
    return kind(
        memory, [(entry.data_ptr(), entry.nbytes, max(entry.get_device(), 0)) for entry in tensors]
    )


def require_memory(descs: b.nixlXferDList | b.nixlRegDList) -> None:
    """Require DRAM or VRAM.

    Raises:
        nixlNotSupportedError: another kind of memory.
    """
    if descs.getType() not in KINDS:
        raise b.nixlNotSupportedError(
            f"dlslime's NIXL module transfers DRAM and VRAM, and not {descs.getType().name}"
        )


def require_kind(region: Region, descs: b.nixlXferDList | b.nixlRegDList) -> None:
    """Require that a region has the kind of memory that its descriptors name.

    Raises:
        ValueError: the region is of another kind.
    """
    if region.device.type != KINDS[descs.getType()]:
        raise ValueError(
            f"dlslime: {region.nbytes} bytes at {region.address:#x} are not "
            f"{descs.getType().name}, but memory of {region.device}"
        )


def unrolled(strided: Any) -> b.Table:
    """Turn rows of (address, bytes, device, stride, count), [N, 5], into a row for each block."""
    runs = strided.astype(np.uint64)
    counts = runs[:, 4].astype(np.int64)
    rows: b.Table = np.repeat(runs[:, :3], counts, axis=0)
    # No Python loop over blocks: a cache may have millions.
    block = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows[:, 0] += block.astype(np.uint64) * np.repeat(runs[:, 3], counts)
    return rows
