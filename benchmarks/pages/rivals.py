"""The engines compared with dlslime, each by its own API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from measuring.transfer_libraries import Exchange, Piece
from pages.base import MissingError, Settings, Start, Wait, all_of, nic_of, nics
from pages.meeting import own_address

UPSTREAM = "0.1.23"  # the version of PyPI's dlslime


def refuse_immediate(settings: Settings, name: str) -> None:
    """Raise MissingError if writes with a number are asked of an engine without such writes."""
    if settings.immediate:
        raise MissingError(f"{name} has no --with-imm-data here")


def upstream_library(wheels: str) -> Any:
    """Import the original dlslime from the folder, instead of another package of the name.

    Raises:
        MissingError: the folder has no dlslime, or another version.
    """
    if not wheels:
        raise MissingError("--wheels names no folder with PyPI's dlslime " + UPSTREAM)
    folder = Path(wheels).resolve()
    if not (folder / f"dlslime-{UPSTREAM}.dist-info").is_dir():
        raise MissingError(f"there is no wheel of dlslime {UPSTREAM} in {folder}")
    sys.path.insert(0, str(folder))
    try:
        import dlslime
    finally:
        sys.path.remove(str(folder))
    found = Path(str(dlslime.__file__)).resolve()
    if folder not in found.parents:
        raise MissingError(f"the name dlslime is taken by {found.parent.name}, not by the wheel")
    return dlslime


class _Original:
    """An endpoint of PyPI's wheel of the original DLSlime, connected to the other end's."""

    serves = False

    def __init__(self, endpoint: Any, memory: torch.Tensor, exchange: Exchange) -> None:
        self._endpoint = endpoint
        address = memory.data_ptr()
        self._here = endpoint.register_memory_region("memory", address, 0, memory.nbytes)
        info = exchange(endpoint.endpoint_info())
        (known,) = info["mr_info"].values()
        self._there = endpoint.register_remote_memory_region("memory", known)
        endpoint.connect(info)

    def _parts(self, pieces: list[Piece]) -> list[tuple[int, int, int, int, int]]:
        return [(self._here, self._there, at, at, size) for at, size in pieces]

    def close(self) -> None:
        """End the endpoint; its threads poll until then."""
        self._endpoint.shutdown()


class Upstream(_Original):
    """The original DLSlime by its RDMAEndpoint."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange, settings: Settings) -> None:
        library = upstream_library(settings.wheels)
        self._settings = settings
        self.serves = settings.immediate
        endpoint = library.RDMAEndpoint(
            nic_of(settings), settings.ib_port, settings.link_type, settings.qp_num
        )
        super().__init__(endpoint, memory, exchange)

    def prepare(self, pieces: list[Piece], write: bool) -> Start:
        """Return a function that starts the batch; the wheel prepares only the batch's list."""
        parts = self._parts(pieces)
        if self._settings.immediate and not self._settings.initiates:
            return lambda: self._endpoint.imm_recv(None).wait
        if self._settings.immediate:
            return lambda: self._endpoint.write_with_imm(parts, 0, None).wait
        call = self._endpoint.write if write else self._endpoint.read
        return lambda: call(parts, None).wait

    def route(self) -> str:
        """Return the route of the bytes."""
        return "rdma"


class UpstreamTcp(_Original):
    """The original DLSlime by its TcpEndpoint, which needs no NIC."""

    def __init__(self, memory: torch.Tensor, exchange: Exchange, settings: Settings) -> None:
        library = upstream_library(settings.wheels)
        refuse_immediate(settings, "upstream-tcp")
        endpoint = library.TcpEndpoint(settings.host or own_address(), 0)
        super().__init__(endpoint, memory, exchange)

    def prepare(self, pieces: list[Piece], write: bool) -> Start:
        """Return a function that starts the batch; the wheel prepares only the batch's list."""
        parts = self._parts(pieces)
        call = self._endpoint.write if write else self._endpoint.read

        def start() -> Wait:
            future = call(parts, None)

            def wait() -> None:
                status = future.wait()
                if status != 0:
                    raise RuntimeError(f"TcpEndpoint: a transfer has ended with status {status}")

            return wait

        return start

    def deliver(self) -> None:
        """Wait until earlier writes are in the other end's memory: a write ends before.

        A write ends when the socket has the bytes. The other end answers a read after the writes.
        """
        status = self._endpoint.read([(self._here, self._there, 0, 0, 1)], None).wait()
        if status != 0:
            raise RuntimeError(f"TcpEndpoint: a read has ended with status {status}")

    def route(self) -> str:
        """Return the route of the bytes."""
        return "tcp"


class Nixl:
    """NIXL with its UCX backend, with handles made beforehand."""

    serves = False

    def __init__(self, memory: torch.Tensor, exchange: Exchange, settings: Settings) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
        from nixl._api import nixl_agent, nixl_agent_config

        refuse_immediate(settings, "NIXL")
        self._kind = "VRAM" if memory.is_cuda else "DRAM"
        self._device = memory.device.index or 0
        self._base = memory.data_ptr()
        # Names differ between the ends; the numbers of processes on two hosts may be equal.
        agent = nixl_agent(f"rank {settings.rank}", nixl_agent_config(backends=["UCX"]))
        self._agent = agent
        region = (self._base, memory.nbytes, self._device, "")
        self._registered = agent.register_memory([region], self._kind)
        mine = (agent.get_agent_metadata(), self._base, self._device)
        metadata, self._there, self._far = exchange(mine)
        self._peer = agent.add_remote_agent(metadata)
        self._handles: list[Any] = []

    def prepare(self, pieces: list[Piece], write: bool) -> Start:
        """Return a function that starts the batch, with a handle of its own."""
        agent = self._agent
        local = [(self._base + at, size, self._device) for at, size in pieces]
        remote = [(self._there + at, size, self._far) for at, size in pieces]
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", local, self._kind)
        there = agent.prep_xfer_dlist(self._peer, remote, self._kind)
        every = list(range(len(pieces)))
        verb = "WRITE" if write else "READ"
        handle = agent.make_prepped_xfer(verb, here, every, there, every)
        self._handles.append(handle)

        def wait(state: str) -> None:
            while state != "DONE":
                if state != "PROC":
                    raise RuntimeError(f"NIXL: a transfer has ended as {state}")
                state = agent.check_xfer_state(handle)

        def start() -> Wait:
            state = agent.transfer(handle)
            return lambda: wait(state)

        return start

    def route(self) -> str:
        """Return the route of the bytes: UCX does not tell the route."""
        return "ucx"

    def close(self) -> None:
        """Give handles and memory back."""
        for handle in self._handles:
            self._agent.release_xfer_handle(handle)
        self._agent.remove_remote_agent(self._peer)
        self._agent.deregister_memory(self._registered)


class Mooncake:
    """Mooncake's transfer engine: over RDMA if the host has a NIC, else over TCP."""

    serves = False

    def __init__(self, memory: torch.Tensor, exchange: Exchange, settings: Settings) -> None:
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # or it logs each batch during the timing
        from mooncake.engine import TransferEngine

        refuse_immediate(settings, "Mooncake")
        self._protocol = settings.protocol
        if self._protocol == "auto":
            self._protocol = "rdma" if nics() else "tcp"
        device = nic_of(settings) if self._protocol == "rdma" else ""
        host = settings.host or own_address()
        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", self._protocol, device) != 0:
            raise MissingError(f"Mooncake can't use {self._protocol} here")
        self._base = memory.data_ptr()
        if self._engine.register_memory(self._base, memory.nbytes) != 0:
            raise MissingError("Mooncake can't register the memory")
        mine = (host, self._engine.get_rpc_port(), self._base)
        host, port, self._there = exchange(mine)
        self._peer = f"{host}:{port}"

    def prepare(self, pieces: list[Piece], write: bool) -> Start:
        """Return a function that starts the batch; Mooncake prepares only the batch's lists."""
        engine, peer = self._engine, self._peer
        local = [self._base + at for at, _ in pieces]
        remote = [self._there + at for at, _ in pieces]
        sizes = [size for _, size in pieces]
        post = engine.batch_transfer_async_write if write else engine.batch_transfer_async_read

        def wait(batch: int) -> None:
            status = engine.get_batch_transfer_status([batch])
            if status != 0:
                raise RuntimeError(f"Mooncake: a transfer has ended with status {status}")

        def start() -> Wait:
            batch = post(peer, local, remote, sizes)
            if batch == 0:
                raise RuntimeError("Mooncake: a batch was refused")
            return lambda: wait(batch)

        return start

    def route(self) -> str:
        """Return the route of the bytes."""
        return self._protocol

    def close(self) -> None:
        """Give the memory back."""
        self._engine.unregister_memory(self._base)


class Messages:
    """Sends and receives of a c10d backend, for engines without one-sided transfers."""

    backend = ""
    serves = True

    def __init__(self, memory: torch.Tensor, exchange: Exchange, settings: Settings) -> None:
        if self.backend == "nccl" and not (dist.is_nccl_available() and memory.is_cuda):
            raise MissingError("NCCL moves memory of GPUs only, and there is none")
        refuse_immediate(settings, self.backend)
        exchange("here")
        self._memory = memory
        self._settings = settings
        meeting: Any = settings.meeting  # of torchrun: has a store
        store = dist.PrefixStore(self.backend, meeting.store)
        dist.init_process_group(
            self.backend, store=store, rank=meeting.rank, world_size=meeting.world
        )

    def prepare(self, pieces: list[Piece], write: bool) -> Start:
        """Return a function that starts the batch, at either end."""
        call = dist.isend if self._settings.initiates == write else dist.irecv
        parts = [self._memory[at : at + size] for at, size in pieces]
        peer = self._settings.peer

        def start() -> Wait:
            works = dist.batch_isend_irecv([dist.P2POp(call, part, peer) for part in parts])
            return all_of([work.wait for work in works])

        return start

    def route(self) -> str:
        """Return the route of the bytes."""
        return self.backend

    def close(self) -> None:
        """End the process group."""
        dist.destroy_process_group()


class Nccl(Messages):
    """NCCL, as in the original's program."""

    backend = "nccl"


class Gloo(Messages):
    """Gloo."""

    backend = "gloo"
