"""Generation B, 0.0.1.post8: a program that reads asynchronously, and then by a callback."""

import asyncio

from dlslime import Assignment, RDMAEndpoint
from ends import Ends, run
from pairs import NAME, post_pair
from post_rc_read_coroutine import read


def main(ends: Ends) -> None:
    pair = post_pair(ends, RDMAEndpoint, device_alone=True)
    if ends.initiator:
        first = Assignment(mr_key=NAME, target_offset=0, source_offset=8, length=4)
        assert pair.initiator.read_batch([first], async_op=True).wait() is None
        second = Assignment(mr_key=NAME, target_offset=4, source_offset=12, length=4)
        assert asyncio.run(read(pair.initiator, [second])) == 0
    pair.expect([0] * 8 + [1] * 8, [1] * 16)
    for _, endpoint, _ in pair.here():
        endpoint.stop()


if __name__ == "__main__":
    run(main, __doc__)
