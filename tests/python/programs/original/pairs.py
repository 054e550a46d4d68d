"""The endpoints of the examples, made as in each generation of the API.

The initiator is on the first device, the target on the last device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import dlslime
import torch
from ends import Ends, Memory, other

NAME = "buffer"
ROCE = {"ib_port": 1, "link_type": "RoCE"}


class Pair:
    """Two endpoints and their memory; an endpoint of another process is None."""

    def __init__(self, ends: Ends, make: Callable[[str], Any]) -> None:
        self._memory = Memory(ends)
        self.initiator = make(device_of("initiator")) if ends.initiator else None
        self.target = make(device_of("target")) if ends.target else None

    def here(self) -> list[tuple[str, Any, torch.Tensor]]:
        """Return the role, the endpoint and the memory of each end in this process."""
        return [(role, getattr(self, role), memory) for role, memory in self._memory.items()]

    def expect(self, local: list[int], remote: list[int]) -> None:
        """Wait for both ends, and compare their memory."""
        self._memory.expect(local, remote)

    def drop(self) -> None:
        """Drop the endpoints, without a shutdown, and then their memory."""
        self.initiator = self.target = None
        self._memory.clear()


def device_of(role: str) -> str:
    """Return the name of an end's device."""
    devices = dlslime.available_nic()
    return devices[0] if role == "initiator" else devices[-1]


def post_pair(ends: Ends, make: Callable[..., Any], device_alone: bool = False) -> Pair:
    """Make a pair of generation B: regions have an equal text as key at both ends."""
    options = {} if device_alone else ROCE
    pair = Pair(ends, lambda device: make(device, **options))
    for _, endpoint, memory in pair.here():
        endpoint.register_memory_region(
            mr_key=NAME,
            addr=memory.data_ptr(),
            offset=memory.storage_offset(),
            length=memory.numel() * memory.itemsize,
        )
    infos = ends.exchange({role: endpoint.endpoint_info for role, endpoint, _ in pair.here()})
    for role, endpoint, _ in pair.here():
        assert endpoint.connect(infos[other(role)]) is None
    return pair


def key_of(role: str) -> int:
    """Return generation K's key of an end's region: a hash of 64 bits, here above 2^63."""
    digest = hashlib.blake2b(f"{NAME} of the {role}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1 << 63


def keys_pair(ends: Ends, make: Callable[..., Any]) -> Pair:
    """Make a pair of generation K: keys are the caller's numbers, for remote ones, too."""
    pair = Pair(ends, lambda device: make(device, **ROCE))
    for role, endpoint, memory in pair.here():
        address, offset = memory.data_ptr(), memory.storage_offset()
        endpoint.register_memory_region(key_of(role), address, offset, memory.numel())
    infos = ends.exchange({role: endpoint.endpoint_info() for role, endpoint, _ in pair.here()})
    if pair.initiator is not None:
        theirs = infos["target"]["mr_info"][str(key_of("target"))]
        assert theirs["mr_key"] == key_of("target")
        assert theirs["length"] == 16
        pair.initiator.register_remote_memory_region(key_of("target"), theirs)
    for role, endpoint, _ in pair.here():
        endpoint.connect(infos[other(role)])
    return pair


def today_pair(ends: Ends, make: Callable[..., Any]) -> tuple[Pair, int, int]:
    """Make a pair of generation C: registering returns handles, for remote ones before `connect`.

    Returns:
        The pair, and the initiator's handles of its own region and of the target's.
    """
    pair = Pair(ends, lambda device: make(device, **ROCE))
    handle = remote = 0
    for _, endpoint, memory in pair.here():
        address, offset = memory.data_ptr(), memory.storage_offset()
        handle = endpoint.register_memory_region(NAME, address, offset, memory.numel())
        assert handle == 0
    infos = ends.exchange({role: endpoint.endpoint_info() for role, endpoint, _ in pair.here()})
    if pair.initiator is not None:
        theirs = infos["target"]["mr_info"][NAME]
        assert theirs["handle"] == 0
        assert theirs["length"] == 16
        remote = pair.initiator.register_remote_memory_region(NAME, theirs)
        assert remote == 0
    for role, endpoint, _ in pair.here():
        endpoint.connect(infos[other(role)])
    return pair, handle, remote
