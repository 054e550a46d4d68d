"""Memory of all kinds for register(): the region keeps the memory, and knows size and access."""

import array
import ctypes
import gc
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dlslime_backend
from harness import dlslime_only, run_world, sync
from mapped_pages import PAGE, Pages
from patterns import blank, expect_pattern, pattern
from refusal import REFUSED
from test_one_sided import NBYTES, swap

pytestmark = dlslime_only

Memory = Any
# Functions that make writable memory with the given content.
WRITABLE: dict[str, Callable[[bytes], Memory]] = {
    "numpy": lambda content: np.frombuffer(bytearray(content), dtype=np.uint8),
    "numpy int32 [., 5]": lambda content: np.frombuffer(bytearray(content), "<i4").reshape(-1, 5),
    "numpy float16": lambda content: np.frombuffer(bytearray(content), np.float16),
    "numpy datetime64": lambda content: np.frombuffer(bytearray(content), "<i8").view("<M8[s]"),
    "numpy records": lambda content: np.frombuffer(
        bytearray(content), [("a", "<i4"), ("b", "<f4")]
    ),
    "numpy part": lambda content: np.frombuffer(bytearray(b"x" * 64 + content), np.uint8)[64:],
    "bytearray": bytearray,
    "memoryview": lambda content: memoryview(bytearray(content)),
    "memoryview of int64": lambda content: memoryview(bytearray(content)).cast("q"),
    "array": lambda content: array.array("i", content),
    "ctypes": lambda content: (ctypes.c_char * len(content)).from_buffer_copy(content),
    "mmap": lambda content: _mapped(content, mmap.ACCESS_WRITE),
    "torch": lambda content: torch.frombuffer(bytearray(content), dtype=torch.uint8),
    "torch bfloat16 [., 4]": lambda content: torch.frombuffer(
        bytearray(content), dtype=torch.bfloat16
    ).reshape(-1, 4),
    "torch that requires grad": lambda content: torch.frombuffer(
        bytearray(content), dtype=torch.float32
    ).requires_grad_(),
}
READ_ONLY: dict[str, Callable[[bytes], Memory]] = {
    "bytes": bytes,
    "memoryview": memoryview,
    "read-only memoryview": lambda content: memoryview(bytearray(content)).toreadonly(),
    "numpy of bytes": lambda content: np.frombuffer(content, dtype=np.uint8),
    "numpy": lambda content: _frozen(content),
    "mmap": lambda content: _mapped(content, mmap.ACCESS_READ),
}


def _frozen(content: bytes) -> np.ndarray[Any, Any]:
    made = np.frombuffer(bytearray(content), dtype=np.uint8)
    made.flags.writeable = False
    return made


def _mapped(content: bytes, access: int) -> mmap.mmap:
    pages = Pages(len(content))
    pages.memory.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    with open(pages.path, "r+b") as file:
        return mmap.mmap(file.fileno(), len(content), access=access)


def _content(memory: Memory) -> bytes:
    if isinstance(memory, torch.Tensor):
        return memory.detach().contiguous().view(torch.uint8).numpy().tobytes()
    if isinstance(memory, np.ndarray):
        return memory.tobytes()
    return bytes(memory)


def _lent(rank: int, size: int, make: str, writable: bool) -> None:
    """Rank 1 registers memory of a kind; rank 0 reads the memory, and writes if allowed."""
    nbytes = 4000
    theirs = pattern(nbytes, 1).numpy().tobytes()
    if rank == 1:
        memory = (WRITABLE if writable else READ_ONLY)[make](theirs)
        region = dlslime_backend.register(memory, name="lent")
        assert region.nbytes == nbytes
    else:
        memory = blank(nbytes)
        region = dlslime_backend.register(memory)
    remote = dlslime_backend.import_region(swap("region", region.export(), 1 - rank))
    peer = dlslime_backend.peer(1 - rank)
    if rank == 0:
        peer.read(region, remote).wait()
        expect_pattern(memory, 1)
        memory.copy_(pattern(nbytes, 5))
        if writable:
            peer.write(region, remote).wait()
        else:
            with pytest.raises(ValueError, match='(?s)"lent" .*for reading'):
                peer.write(region, remote)
    sync("over")
    if rank == 1:
        assert _content(memory) == (pattern(nbytes, 5).numpy().tobytes() if writable else theirs)
    region.deregister()


@pytest.mark.parametrize("make", WRITABLE)
def test_writable_memory_of_all_kinds_is_read_and_written(make: str) -> None:
    run_world(_lent, 2, make, True)


@pytest.mark.parametrize("make", READ_ONLY)
def test_read_only_memory_of_all_kinds_is_read(make: str) -> None:
    run_world(_lent, 2, make, False)


def _given_by_address(rank: int, size: int) -> None:
    memory = pattern(PAGE)
    address = memory.data_ptr()
    for pair in (
        (address, PAGE),
        (np.int64(address), np.int32(PAGE)),
        (np.uint64(address), np.uint16(PAGE)),
    ):
        region = dlslime_backend.register(pair, "raw")
        assert (region.address, region.nbytes) == (address, PAGE)
    assert dlslime_backend.register((address, 0)).nbytes == 0


def test_pair_of_integers_is_an_address_and_bytes() -> None:
    run_world(_given_by_address, 1)


def _empty(rank: int, size: int) -> None:
    for memory in (b"", bytearray(), np.zeros(0), np.zeros((3, 0)), torch.zeros(0)):
        assert dlslime_backend.register(memory).nbytes == 0


def test_memory_of_no_bytes_is_registered() -> None:
    run_world(_empty, 1)


def _two_elements(rank: int, size: int) -> None:
    """An array of an address and a length is sixteen bytes of memory, and no pair."""
    elsewhere = pattern(PAGE)
    for memory in (
        np.array([elsewhere.data_ptr(), PAGE]),
        torch.tensor([elsewhere.data_ptr(), PAGE]),
    ):
        region = dlslime_backend.register(memory)
        assert region.nbytes == 16
        assert region.address != elsewhere.data_ptr()
        assert torch.equal(region.bytes_at(0, 8).view(torch.int64), torch.as_tensor(memory[:1]))


def test_array_of_two_numbers_is_memory_itself() -> None:
    run_world(_two_elements, 1)


def _large(rank: int, size: int) -> None:
    for memory in (np.ones(1 << 20, dtype=np.int8), bytearray(32 << 20)):
        try:
            region = dlslime_backend.register(memory)
        except REFUSED as error:
            text = str(error)
            raise AssertionError(f"{len(text)} characters: {text[:200]}") from None
        assert region.nbytes == memoryview(memory).nbytes


def test_large_arrays_are_registered() -> None:
    run_world(_large, 1)


def _kept(rank: int, size: int) -> None:
    """Memory lives as long as its registration, and no longer."""
    array_ = np.frombuffer(
        bytearray(pattern(NBYTES, rank).numpy().tobytes()), dtype=np.uint8
    ).copy()
    watched = weakref.ref(array_)
    region = dlslime_backend.register(array_, name="kept")
    del array_
    gc.collect()
    scribbles = [np.full(NBYTES, 0xDD, dtype=np.uint8) for _ in range(20)]
    remote = dlslime_backend.import_region(swap("kept", region.export(), 1 - rank))
    assert watched() is not None
    if rank == 0:
        target = blank(NBYTES)
        dlslime_backend.peer(1).read(dlslime_backend.register(target), remote).wait()
        expect_pattern(target, 1)
    sync("read")
    region.deregister()
    gc.collect()
    assert watched() is None
    assert len(scribbles) == 20


def test_array_is_kept_until_it_is_deregistered() -> None:
    run_world(_kept, 2)


def _not_resized(rank: int, size: int) -> None:
    memory = bytearray(1000)
    region = dlslime_backend.register(memory)
    with pytest.raises(BufferError):
        memory.extend(bytes(1 << 20))
    region.deregister()
    memory.extend(bytes(1 << 20))


def test_bytearray_keeps_its_size_while_it_is_registered() -> None:
    run_world(_not_resized, 1)
