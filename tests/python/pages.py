"""Memory whose pages are the tests' own: in a file that others can map, too."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

PAGE = mmap.PAGESIZE


def _whole(nbytes: int) -> int:
    return (nbytes + PAGE - 1) // PAGE * PAGE


class Pages:
    """Memory of whole pages in a file without a name, shared by all processes that map the file."""

    def __init__(self, nbytes: int, path: str = "") -> None:
        self._nbytes = nbytes
        if path:
            self._file = os.open(path, os.O_RDWR)
        else:  # it goes with the processes that have it, however they end
            self._file = os.memfd_create("test")
            os.ftruncate(self._file, _whole(nbytes))
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        self.memory = self.mapped_again()

    def __del__(self) -> None:
        os.close(self._file)

    def mapped_again(self) -> torch.Tensor:
        """The same pages at another address: uint8 [nbytes]."""
        mapping = mmap.mmap(self._file, _whole(self._nbytes))
        return torch.frombuffer(mapping, dtype=torch.uint8)[: self._nbytes]


def mapped_at(address: int) -> bool:
    """Tells whether this process has anything mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= address < last:
            return True
    return False
