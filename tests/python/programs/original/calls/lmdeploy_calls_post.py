"""LMDeploy's calls from 0.9.2 to 0.11: batches of 4,096 pieces, and a batch with a callback."""

import asyncio
from typing import Any

from dlslime import Assignment, RDMAEndpoint, available_nic
from ends import ROLES, Ends, expect, numbers, other, run

PIECES, PIECE = 10_000, 16
AT_A_TIME = 4096
KEYS = ["0", "1"]


def batch(key: str, first: int, last: int) -> list[Assignment]:
    """Return the pieces of a range, with mirrored places as destinations."""
    return [
        Assignment(
            mr_key=key,
            target_offset=piece * PIECE,
            source_offset=(PIECES - 1 - piece) * PIECE,
            length=PIECE,
        )
        for piece in range(first, last)
    ]


def read_in_parts(endpoint: Any) -> None:
    """Read the first pool, with as many pieces in a call as a queue holds."""
    for first in range(0, PIECES, AT_A_TIME):
        pieces = batch("0", first, min(first + AT_A_TIME, PIECES))
        assert endpoint.read_batch(pieces) is None


async def read_by_callback(endpoint: Any) -> int:
    """Read the second pool except its last piece, awaited; return the status."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()
    endpoint.read_batch_with_callback(
        batch("1", 0, PIECES - 1), lambda status: loop.call_soon_threadsafe(over.set_result, status)
    )
    return await over


def mirrored(pool: Any) -> Any:
    """Return all pieces in the opposite order."""
    return pool.view(PIECES, PIECE).flip(0).reshape(-1)


def main(ends: Ends) -> None:
    nic = available_nic()[0]
    endpoints, pools = {}, {}
    for role in ends.roles:
        endpoints[role] = RDMAEndpoint(device_name=nic, ib_port=1, link_type="RoCE")
        seeds = [10 * ROLES.index(role) + number for number in range(len(KEYS))]
        pools[role] = [numbers(PIECES * PIECE, seed).to(ends.device) for seed in seeds]
        for key, pool in zip(KEYS, pools[role]):
            endpoints[role].register_memory_region(key, pool.data_ptr(), 0, pool.nbytes)
    infos = ends.exchange({role: endpoints[role].endpoint_info for role in ends.roles})
    for role in ends.roles:
        endpoints[role].connect(infos[other(role)])

    if ends.initiator:
        read_in_parts(endpoints["initiator"])
        assert asyncio.run(read_by_callback(endpoints["initiator"])) == 0
        first, second = (mirrored(numbers(PIECES * PIECE, 10 + number)) for number in range(2))
        second[:PIECE] = numbers(PIECES * PIECE, 1)[:PIECE]
        expect(pools["initiator"][0], first, "the first pool")
        expect(pools["initiator"][1], second, "the second pool")
    ends.meet()
    if ends.target:
        for number, pool in enumerate(pools["target"]):
            expect(pool, numbers(PIECES * PIECE, 10 + number), f"the target's pool {number}")


if __name__ == "__main__":
    run(main, __doc__)
