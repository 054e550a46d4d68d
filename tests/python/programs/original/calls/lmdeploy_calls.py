"""LMDeploy's calls, from 0.12 to 0.18: caches of several pools migrate to a decode engine.

The target has two prefill engines and an encoder, each with an endpoint for the decode engine; the
initiator is the decode engine, with an endpoint for each of the three.
"""

import asyncio
import json
from typing import Any

from dlslime import NVLinkEndpoint, RDMAEndpoint, available_nic
from ends import Ends, expect, numbers, other, run
from torch import Tensor

BLOCKS, BLOCK, LAYERS = 32, 512, 4
LENGTH = LAYERS * BLOCKS * BLOCK
# Bytes of each cache pool: the empty pool gets no region, so that the keys have a gap.
POOLS = [LENGTH, LENGTH, 0, LENGTH]
SOURCES = ["prefill", "prefill 2", "encoder"]
Cache = dict[int, Tensor]
Move = tuple[int, int]  # a block of the source, and the block's place at the decode engine


def contents(name: str) -> Cache:
    """Return an engine's contents of each pool at the start."""
    engine = ["decode", *SOURCES].index(name)
    found = [numbers(nbytes, 10 * engine + key) for key, nbytes in enumerate(POOLS)]
    return {key: pool for key, pool in enumerate(found) if pool.numel()}


def endpoint_for(cache: Cache, protocol: str, rank: int) -> Any:
    """Make an endpoint for a remote engine, with all pools of the cache."""
    if protocol == "RDMA":
        nics = available_nic()
        nic = nics[rank % len(nics)]
        endpoint = RDMAEndpoint(device_name=nic, ib_port=1, link_type="RoCE")
    else:
        endpoint = NVLinkEndpoint()
    for key, pool in cache.items():
        endpoint.register_memory_region(key, pool.data_ptr(), pool.storage_offset(), pool.nbytes)
    return endpoint


def link(ends: Ends, caches: dict[str, Cache], protocol: str) -> dict[str, dict[str, Any]]:
    """Make and connect the endpoints; return endpoints by role, and by the source's name."""
    endpoints: dict[str, dict[str, Any]] = {role: {} for role in ends.roles}
    for rank, source in enumerate(SOURCES):
        for role in ends.roles:
            mine = caches["decode" if role == "initiator" else source]
            endpoints[role][source] = endpoint_for(mine, protocol, rank)
    texts = ends.exchange(
        {
            role: {source: json.dumps(e.endpoint_info()) for source, e in theirs.items()}
            for role, theirs in endpoints.items()
        }
    )
    for role, mine in endpoints.items():
        for source, endpoint in mine.items():
            endpoint.connect(json.loads(texts[other(role)][source]))
    return endpoints


def assignments(cache: Cache, moves: list[Move]) -> list[tuple[int, int, int, int, int]]:
    """Return a piece for each pool, layer and block."""
    return [
        (key, key, (layer * BLOCKS + theirs) * BLOCK, (layer * BLOCKS + ours) * BLOCK, BLOCK)
        for key in cache
        for layer in range(LAYERS)
        for theirs, ours in moves
    ]


async def migrate(endpoint: Any, cache: Cache, moves: list[Move]) -> None:
    """Migrate blocks; a thread of the loop's executor waits for the end."""
    future = endpoint.read(assignments(cache, moves))
    await asyncio.get_running_loop().run_in_executor(None, future.wait)


def moves_of(number: int) -> list[Move]:
    """Return four blocks of a source; no place is in two migrations."""
    places = range(4 * number, 4 * number + 4)
    return [((7 * place + 3) % BLOCKS, place) for place in places]


def decode(endpoints: dict[str, Any], cache: Cache) -> None:
    """Run six migrations at once, then one with an immediate wait; check every byte."""
    wanted = contents("decode")
    plan = [(SOURCES[number % 3], moves_of(number)) for number in range(7)]

    async def all_but_the_last() -> None:
        await asyncio.gather(*(migrate(endpoints[name], cache, moves) for name, moves in plan[:6]))

    asyncio.run(all_but_the_last())
    name, moves = plan[6]
    endpoints[name].read(assignments(cache, moves)).wait()
    for source, moves in plan:
        theirs = contents(source)
        for key, _, target, place, length in assignments(cache, moves):
            wanted[key][place : place + length] = theirs[key][target : target + length]
    for key, pool in cache.items():
        expect(pool, wanted[key], f"pool {key} of decode")


def register_again_and_again(cache: Cache) -> None:
    """Check that a key keeps one region, for one pool or for changing pools."""
    endpoint = endpoint_for({0: cache[0]}, "RDMA", 0)
    names = endpoint.endpoint_info()["mr_info"].keys()
    for number in range(200):
        pool = cache[number // 100]
        endpoint.register_memory_region(0, pool.data_ptr(), 0, pool.nbytes)
        assert endpoint.endpoint_info()["mr_info"].keys() == names


def main(ends: Ends) -> None:
    names = [*(["decode"] if ends.initiator else []), *(SOURCES if ends.target else [])]
    for protocol in ("RDMA", "NVLink"):
        caches = {
            name: {key: pool.to(ends.device) for key, pool in contents(name).items()}
            for name in names
        }
        endpoints = link(ends, caches, protocol)
        if ends.initiator:
            decode(endpoints["initiator"], caches["decode"])
        ends.meet()
        for source in SOURCES if ends.target else []:
            for key, pool in contents(source).items():
                expect(caches[source][key], pool, f"pool {key} of {source}")
        for name in names:
            register_again_and_again(caches[name])


if __name__ == "__main__":
    run(main, __doc__)
