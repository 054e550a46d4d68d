"""Generation B: awaits a read, with a callback from a thread of the library."""

import asyncio
from typing import Any

from dlslime import Assignment, RDMAEndpoint
from ends import Ends, run
from pairs import NAME, post_pair


async def read(endpoint: Any, batch: list[Assignment]) -> int:
    """Read, and return the status given to the callback."""
    loop = asyncio.get_running_loop()
    status: asyncio.Future[int] = loop.create_future()

    def over(code: int) -> None:
        loop.call_soon_threadsafe(status.set_result, code)

    under_way = endpoint.read_batch_with_callback(batch, over)
    assert under_way is not None
    return await status


def main(ends: Ends) -> None:
    pair = post_pair(ends, RDMAEndpoint)
    if ends.initiator:
        piece = Assignment(mr_key=NAME, target_offset=0, source_offset=8, length=8)
        assert asyncio.run(read(pair.initiator, [piece])) == 0
    pair.expect([0] * 8 + [1] * 8, [1] * 16)


if __name__ == "__main__":
    run(main, __doc__)
