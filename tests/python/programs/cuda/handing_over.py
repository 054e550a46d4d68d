"""Mapped memory of GPUs in processes that may not copy each other's descriptors."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from paths import FOLDERS

sys.path.extend(FOLDERS)

import gpus
from test_permissions import refuse


def without_permission(rank: int, peer: int) -> None:
    """Exchange messages where Docker's seccomp profile refuses pidfd_getfd."""
    refuse("getfd")
    gpus.exchange_until_direct(rank, peer)


if __name__ == "__main__":
    gpus.run([without_permission])
