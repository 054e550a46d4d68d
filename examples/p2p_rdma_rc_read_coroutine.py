"""The initiator awaits several concurrent reads of the target's memory, with asyncio.

    python examples/p2p_rdma_rc_read_coroutine.py [--device cuda]

runs both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_read_coroutine.py --role target $URLS &
    python examples/p2p_rdma_rc_read_coroutine.py --role initiator $URLS

pair.py connects the two ends.
"""

import asyncio

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # content of the initiator's and the target's memory


async def read(side: Side, region: dlslime.Region, remote: dlslime.RemoteRegion) -> None:
    """Await two reads of 4 bytes; the event loop runs other coroutines meanwhile."""
    pieces = [(8, 0, 4), (12, 4, 4)]  # local offset, remote offset, bytes
    async with asyncio.timeout(side.timeout):  # cancels late reads
        await asyncio.gather(*(side.endpoint.read(region, remote, [piece]) for piece in pieces))


def play(side: Side) -> None:
    """Register memory at both ends; then the initiator reads."""
    content = OURS if side.initiator else THEIRS
    memory = torch.tensor(content, dtype=torch.uint8, device=side.device)
    region = dlslime.register(memory, name=f"memory of the {side.role}")
    remote = side.swap(region)
    if side.initiator:
        asyncio.run(read(side, region, remote))
    side.meet()
    expect(memory, [*OURS[:8], *THEIRS[:8]] if side.initiator else THEIRS)
    region.deregister()
    side.report("awaited 2 reads of 4 bytes, of offset 0 to offset 8", "lent its memory")


if __name__ == "__main__":
    run(__doc__, play)
