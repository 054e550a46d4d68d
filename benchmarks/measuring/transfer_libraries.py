"""The libraries compared by transfers.py, each behind three common calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

PAGE = 16 << 10

Exchange = Callable[[Any], Any]  # gives the other process an object, and returns an object
Go = Callable[[], None]  # a read, from its post to its end
Piece = tuple[int, int]  # offset, equal at both ends, and bytes


class Ours:
    """dlslime, with pieces prepared beforehand, as in the other libraries."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange) -> None:
        import dlslime_backend as dlslime

        self._region = dlslime.register(memory, "memory")
        self._endpoint = dlslime.Endpoint()
        address, exported = exchange((self._endpoint.address, self._region.export()))
        self._endpoint.connect(address)
        self._remote = dlslime.import_region(exported)

    def prepare(self, pieces: list[Piece]) -> Go:
        """Return a function that reads the pieces."""
        if len(pieces) == 1:
            batch: Any = [(pieces[0][0], *pieces[0])]
        else:
            pages = torch.tensor([offset // PAGE for offset, _ in pieces])
            batch = (pages, pages, PAGE)
        start = self._endpoint.prepare_read(self._region, self._remote, batch).start
        return lambda: start().wait()

    def submit(self, count: int) -> float:
        """Return the seconds for posting `count` scattered pieces of 2 KiB."""
        small = 2048
        here = torch.randperm(count) * small
        there = torch.randperm(count) * small
        lengths = torch.full((count,), small)
        start = time.perf_counter()
        transfer = self._endpoint.read(self._region, self._remote, (here, there, lengths))
        posted = time.perf_counter()
        transfer.wait()
        return posted - start


class Nixl:
    """NIXL with its UCX backend, with handles made beforehand, as NIXL intends."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        name = f"agent {os.getpid()}"
        self._agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self._base = memory.data_ptr()
        self._agent.register_memory([(self._base, memory.nbytes, 0, "")], "DRAM")
        metadata, self._there = exchange((self._agent.get_agent_metadata(), self._base))
        self._peer = self._agent.add_remote_agent(metadata)

    def prepare(self, pieces: list[Piece]) -> Go:
        """Return a function that reads the pieces."""
        agent = self._agent
        local = [(self._base + offset, size, 0) for offset, size in pieces]
        remote = [(self._there + offset, size, 0) for offset, size in pieces]
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", local, "DRAM")
        there = agent.prep_xfer_dlist(self._peer, remote, "DRAM")
        every = list(range(len(pieces)))
        handle = agent.make_prepped_xfer("READ", here, every, there, every)

        def go() -> None:
            state = agent.transfer(handle)
            while state != "DONE":
                assert state == "PROC", state
                state = agent.check_xfer_state(handle)

        return go


class Mooncake:
    """Mooncake's transfer engine over TCP, from Mooncake's wheel."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange) -> None:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        assert self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self._base = memory.data_ptr()
        assert self._engine.register_memory(self._base, memory.nbytes) == 0
        port, self._there = exchange((self._engine.get_rpc_port(), self._base))
        self._peer = f"127.0.0.1:{port}"

    def prepare(self, pieces: list[Piece]) -> Go:
        """Return a function that reads the pieces."""
        local = [self._base + offset for offset, _ in pieces]
        remote = [self._there + offset for offset, _ in pieces]
        sizes = [size for _, size in pieces]
        read, peer = self._engine.batch_transfer_sync_read, self._peer

        def go() -> None:
            status = read(peer, local, remote, sizes)
            assert status == 0, status

        return go


LIBRARIES: dict[str, Callable[[torch.Tensor, Exchange], Any]] = {
    "ours": Ours,
    "nixl": Nixl,
    "mooncake": Mooncake,
}
