"""Memory with pages of the test's own, which can be protected, cut short, and mapped twice."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

PAGE = mmap.PAGESIZE
# How memory can be beyond reach of reads and of writes; see faulting().
UNREADABLE = ["cut", "out_of_reach"]
UNWRITABLE = ["read_only", *UNREADABLE]
_READ = 1
_NOTHING = 0
_ALL = 3
_libc = ctypes.CDLL(None, use_errno=True)


def _whole(nbytes: int) -> int:
    return (nbytes + PAGE - 1) // PAGE * PAGE


def _protect(memory: torch.Tensor, protection: int) -> None:
    assert memory.data_ptr() % PAGE == 0
    address, extent = ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(_whole(memory.numel()))
    done = _libc.mprotect(address, extent, ctypes.c_int(protection))
    assert done == 0, os.strerror(ctypes.get_errno())


class Pages:
    """Memory of whole pages in a file without a name, shared by all processes that map the file."""

    def __init__(self, nbytes: int, path: str = "") -> None:
        self._nbytes = nbytes
        if path:
            self._file = os.open(path, os.O_RDWR)
        else:  # an anonymous file lives until the last process with the file ends, in whatever way
            self._file = os.memfd_create("test")
            os.ftruncate(self._file, _whole(nbytes))
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        self.memory = self.mapped_again()

    def __del__(self) -> None:
        os.close(self._file)

    def mapped_again(self) -> torch.Tensor:
        """Map the pages at another address: uint8 [nbytes]."""
        mapping = mmap.mmap(self._file, _whole(self._nbytes))
        return torch.frombuffer(mapping, dtype=torch.uint8)[: self._nbytes]

    def cut(self, nbytes: int = 0) -> None:
        """Cut the file after `nbytes`: an access to the memory behind raises SIGBUS."""
        os.ftruncate(self._file, nbytes)

    def mend(self) -> None:
        """Undo the cut: the bytes cut off are back, as zeros."""
        os.ftruncate(self._file, _whole(self._nbytes))


@contextlib.contextmanager
def read_only(memory: torch.Tensor) -> Iterator[None]:
    """Make writes to `memory` raise SIGSEGV for a while; `memory` begins at a page."""
    _protect(memory, _READ)
    try:
        yield
    finally:
        _protect(memory, _ALL)


@contextlib.contextmanager
def out_of_reach(memory: torch.Tensor) -> Iterator[None]:
    """Make any access to `memory` raise SIGSEGV for a while; `memory` begins at a page."""
    _protect(memory, _NOTHING)
    try:
        yield
    finally:
        _protect(memory, _ALL)


@contextlib.contextmanager
def faulting(pages: Pages, kind: str, at_end: bool = False) -> Iterator[None]:
    """Put the memory, or only its last page, beyond reach for a while."""
    begin = (pages.memory.numel() - 1) // PAGE * PAGE if at_end else 0
    if kind == "cut":
        pages.cut(begin)
        yield
        pages.mend()
        return
    with {"read_only": read_only, "out_of_reach": out_of_reach}[kind](pages.memory[begin:]):
        yield


def expect_fault(text: str, whose: str, write: bool, kind: str) -> None:
    """Check that an error names the owner of the memory, the failed access and the reason."""
    cause = text.split(" failed: ", 1)[1]
    assert re.search(whose, cause), f"{whose} is not named: {text}"
    assert f"can't be {'written' if write else 'read'}" in cause, text
    assert ("read-only" in cause) == (kind == "read_only"), text


def mapped_at(address: int) -> bool:
    """Tell whether the process has anything mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= address < last:
            return True
    return False
