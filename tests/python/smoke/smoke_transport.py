"""dlslime as a one-sided transport of torch 2.15; run by torchrun with two ranks.

torchrun --standalone --nproc-per-node 2 tests/python/smoke/smoke_transport.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.distributed._transport import (  # type: ignore[import-not-found,unused-ignore]
    Memory,
    MutableMemoryView,
    RemoteBuffer,
    available_transports,
    new_transport,
    new_transport_rank,
    wait_all,
)

from refusal import refused

COUNT = 100_000


def exchange(mine: bytes) -> bytes:
    both: list[Any] = [None, None]
    dist.all_gather_object(both, mine)
    return bytes(both[1 - dist.get_rank()])


async def asynchronously(transport: Any, local: Memory, remote: RemoteBuffer) -> None:
    await transport.read_async(local.to_mutable_view(), remote, timeout=30.0)
    works = [transport.read(local.to_mutable_view(), remote, async_op=True) for _ in range(50)]
    await wait_all(works, timeout=30.0)


def transfers(rank: int, transport: Any) -> None:
    peer = 1 - rank
    source = torch.arange(COUNT, dtype=torch.int64) * (rank + 1)
    target = torch.zeros(COUNT, dtype=torch.int64)
    out, into = transport.register_memory(source), transport.register_memory(target)
    assert isinstance(out, Memory)
    assert isinstance(into.to_mutable_view(), MutableMemoryView)
    kind = type(out.to_remote_buffer())
    remote = kind.deserialize(exchange(out.to_remote_buffer().serialize()))
    window = kind.deserialize(exchange(into.to_remote_buffer().serialize()))
    assert transport.read(into.to_mutable_view(), remote) == 0
    assert torch.equal(target, torch.arange(COUNT) * (peer + 1))
    dist.barrier()
    work = transport.write(out.to_view(), window, async_op=True)
    assert work.get_future().wait() == []
    assert work.wait()
    assert work.is_success()
    dist.barrier()
    assert torch.equal(target, torch.arange(COUNT) * (peer + 1))
    asyncio.run(asynchronously(transport, into, remote))
    short, fixed = into.to_mutable_view(0, 8), into.to_view()
    refused(ValueError, "8 bytes here and 800000 bytes", lambda: transport.read(short, remote))
    refused(ValueError, "needs a mutable view", lambda: transport.read(fixed, remote))
    refused(ValueError, "of memory of 800000", lambda: into.to_view(8 * COUNT, 1))
    refused(ValueError, "no remote buffer", lambda: kind.deserialize(b"[]"))
    dist.barrier()
    transport.unregister_memory(into)
    dist.barrier()
    refused(ValueError, "is not registered", lambda: transport.write(out.to_view(), window))


def main() -> None:
    assert "dlslime" in available_transports()
    refused(RuntimeError, "not of mps", lambda: new_transport("dlslime", "mps"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    transport = new_transport_rank("dlslime", "cpu", peer_rank=1 - rank)
    assert transport.connected()
    transfers(rank, transport)
    dist.barrier()
    transport.close()
    transport.close()
    dist.destroy_process_group()
    if rank == 0:
        print(f"   dlslime is a transport of torch {torch.__version__}", flush=True)


if __name__ == "__main__":
    main()
