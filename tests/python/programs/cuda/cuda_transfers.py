"""One-sided transfers of CUDA tensors; torchrun for test_cuda and benchmarks/gpu_check."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

import dlslime_backend
import gpus
from dlslime_backend import Region, RemoteRegion
from dlslime_backend.compat.dlslime import NVLinkEndpoint
from dlslime_backend.compat.nixl import nixl_agent
from dlslime_backend.compat.nixl._bindings import nixlInvalidParamError
from refusal import refused

PAGE = 1000
PAGES = 300
DEVICES = (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda"))


def pages_of(rank: int) -> torch.Tensor:
    return torch.arange(PAGES * PAGE).remainder(251).add(rank).to(torch.uint8).view(PAGES, PAGE)


def swap(mine: object) -> object:
    every: list[object] = [None, None]
    dist.all_gather_object(every, mine)
    return every[1 - dist.get_rank()]


def remote_of(region: Region) -> RemoteRegion:
    exported = swap(region.export())
    assert isinstance(exported, bytes)
    return dlslime_backend.import_region(exported)


def every_pair_of_memories(rank: int, peer: int) -> None:
    link = dlslime_backend.peer(peer)
    for here, there in DEVICES:
        mine = pages_of(rank).to(there if rank else here)
        region = dlslime_backend.register(mine, name="pages")
        assert region.device.type == mine.device.type
        remote = remote_of(region)
        if rank == 0:
            order = torch.randperm(PAGES)
            link.read(region, remote, (torch.arange(PAGES), order, PAGE)).wait()
            assert torch.equal(mine.cpu(), pages_of(1)[order]), (here, there)
            link.write(region, remote, [(0, 5, 3 * PAGE)]).wait()
        dist.barrier()
        if rank == 1:
            assert not torch.equal(mine.cpu(), pages_of(1))
        expected = swap(mine.cpu())
        assert isinstance(expected, torch.Tensor)
        if rank == 0:
            ours = mine.cpu().flatten()
            assert torch.equal(expected.flatten()[5 : 5 + 3 * PAGE], ours[: 3 * PAGE])
        dist.barrier()
        region.deregister()


def of_addresses(rank: int, peer: int) -> None:
    """Regions given as address and size, as serving frameworks register their caches."""
    mine = pages_of(rank).cuda()
    region = dlslime_backend.register((mine.data_ptr() + PAGE, 7 * PAGE))
    assert region.device == mine.device
    remote = remote_of(region)
    if rank == 0:
        dlslime_backend.peer(peer).read(region, remote).wait()
        assert torch.equal(mine[1:8].cpu(), pages_of(1)[1:8])
        assert torch.equal(region.bytes_at(PAGE, PAGE).cpu(), pages_of(1)[2])
        refused(
            ValueError,
            "offset 6001 and length 1000 are outside",
            lambda: region.bytes_at(6 * PAGE + 1, PAGE),
        )
    dist.barrier()
    region.deregister()


def parts_on_gpus_and_processors(rank: int, peer: int) -> None:
    """A transfer may have parts on GPUs and parts on CPUs at either end, in any order."""
    memories = [pages_of(rank), pages_of(rank).cuda(), pages_of(rank)]
    regions = [dlslime_backend.register(memory) for memory in memories]
    remotes = [remote_of(region) for region in regions]
    if rank == 0:
        parts = zip(regions, remotes, [[(0, PAGE, PAGE)]] * 3, strict=True)
        dlslime_backend.peer(peer).read_many(parts).wait()
        assert all(torch.equal(memory[0].cpu(), pages_of(1)[1]) for memory in memories)
    dist.barrier()
    for region in regions:
        region.deregister()


def streams_keep_the_order(rank: int, peer: int) -> None:
    """Writes carry the bytes computed on the stream, and later operations see the bytes read."""
    mine = torch.zeros(PAGES, PAGE, dtype=torch.uint8, device="cuda")
    source = pages_of(rank).cuda()
    gpus.settle()  # a stream other than the filling stream uses the tensors
    region = dlslime_backend.register(mine)
    remote = remote_of(region)
    link = dlslime_backend.peer(peer)
    if rank == 0:
        result = torch.zeros_like(mine)
        stream = gpus.stream()
        with gpus.on(stream):
            mine.copy_(source, non_blocking=True)
            write = link.write(region, remote)
            write.block_current_stream()
            mine.zero_()  # written memory may be changed
            read = link.read(region, remote)
            read.block_current_stream()
            result.copy_(mine, non_blocking=True)
            stream.synchronize()
        assert write.done()
        assert torch.equal(result.cpu(), pages_of(0))
    dist.barrier()
    assert torch.equal(mine.cpu(), pages_of(0))
    region.deregister()


def ways_to_wait(rank: int, peer: int) -> None:
    mine = pages_of(rank).cuda()
    region = dlslime_backend.register(mine)
    remote = remote_of(region)
    link = dlslime_backend.peer(peer)

    async def both() -> None:
        halves = [(0, 0, PAGE), (5 * PAGE, 5 * PAGE, PAGE)]
        await asyncio.gather(*(link.read(region, remote, [half]) for half in halves))

    if rank == 0:
        asyncio.run(both())
        assert torch.equal(mine[5].cpu(), pages_of(1)[5])
        prepared = link.prepare_read(region, remote, [(0, PAGE, PAGE)])
        for _ in range(3):
            transfer = prepared.start()
            while not transfer.done():
                time.sleep(0)
            assert transfer.nbytes == PAGE
        assert torch.equal(mine[0].cpu(), pages_of(1)[1])
        link.write_with_imm(region, remote, [(0, 9 * PAGE, PAGE)], imm=77).wait()
    else:
        assert link.expect_imm().wait() == 77
        assert torch.equal(mine[9].cpu(), pages_of(1)[1])
    sent, received = torch.full((5,), rank, device="cuda"), torch.zeros(5).long().cuda()
    works = [link.send(sent), link.recv(received)]
    for work in works:
        work.wait()
    assert received.tolist() == [peer] * 5
    dist.barrier()
    region.deregister()


def bad_input_is_refused(rank: int, peer: int) -> None:
    region = dlslime_backend.register(torch.zeros(100, device="cuda:0"))
    remote = remote_of(region)
    link = dlslime_backend.peer(peer)
    text = "outside of the local region"
    refused(ValueError, text, lambda: link.read(region, remote, [(400, 0, 4)]))
    crooked = torch.ones(3, 4, device="cuda").t()
    refused(ValueError, "non-contiguous", lambda: dlslime_backend.register(crooked))
    if torch.cuda.device_count() > 1:
        other = dlslime_backend.register(torch.zeros(100, device="cuda:1"))
        parts = [(region, remote, [(0, 0, 4)]), (other, remote, [(4, 4, 4)])]
        refused(ValueError, "of two GPUs.*is on GPU 1", lambda: link.read_many(parts))
        other.deregister()
    dist.barrier()
    region.deregister()


def calls_of_dlslime(rank: int, peer: int) -> None:
    mine = pages_of(rank).cuda()
    endpoint = NVLinkEndpoint()
    endpoint.register_memory_region(0, mine.data_ptr(), 0, mine.nbytes)
    info = swap(endpoint.endpoint_info())
    assert isinstance(info, dict)
    endpoint.connect(info)
    if rank == 0:
        endpoint.read([(0, 0, page * PAGE, page * PAGE, PAGE) for page in range(9)]).wait()
        assert torch.equal(mine[:9].cpu(), pages_of(1)[:9])
        assert endpoint.send((mine.data_ptr(), 0, PAGE)).wait() == 0
    else:
        assert endpoint.recv((mine[20].data_ptr(), 0, PAGE)).wait() == 0
        assert torch.equal(mine[20].cpu(), pages_of(1)[0])
    dist.barrier()
    endpoint.shutdown()


def calls_of_nixl(rank: int, peer: int) -> None:
    mine = pages_of(rank).cuda()
    agent = nixl_agent(f"agent {rank}")
    refused(
        nixlInvalidParamError,
        "not DRAM_SEG, but memory of cuda",
        lambda: agent.register_memory([(mine.data_ptr(), 100, 0, "")], "DRAM"),
    )
    agent.register_memory(mine)
    other = agent.add_remote_agent(swap(agent.get_agent_metadata()))
    address = swap(mine.data_ptr())
    if rank == 0:
        rows = [(30 * PAGE, 40 * PAGE), (50 * PAGE, 60 * PAGE)]
        here = agent.get_xfer_descs([(mine.data_ptr() + at, PAGE, 0) for at, _ in rows], "VRAM")
        there = agent.get_xfer_descs([(address + at, PAGE, 0) for _, at in rows], "VRAM")  # type: ignore[operator]
        handle = agent.initialize_xfer("READ", here, there, other, b"read")
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        assert state == "DONE"
        assert torch.equal(mine[50].cpu(), pages_of(1)[60])
    dist.barrier()


def main() -> None:
    parts: list[Callable[[int, int], None]] = [
        every_pair_of_memories,
        of_addresses,
        parts_on_gpus_and_processors,
        streams_keep_the_order,
        ways_to_wait,
        bad_input_is_refused,
        calls_of_dlslime,
        calls_of_nixl,
    ]
    gpus.run(parts)


if __name__ == "__main__":
    main()
