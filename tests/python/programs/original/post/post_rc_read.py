"""Generation B: reads 8 bytes of the target, asynchronously."""

from datetime import timedelta

from dlslime import Assignment, RDMAEndpoint
from ends import Ends, run
from pairs import NAME, post_pair


def main(ends: Ends) -> None:
    pair = post_pair(ends, RDMAEndpoint)
    if ends.initiator:
        piece = Assignment(mr_key=NAME, target_offset=0, source_offset=8, length=8)
        future = pair.initiator.read_batch([piece], async_op=True)
        assert future.wait() is None
        assert isinstance(future.latency(), timedelta)
    pair.expect([0] * 8 + [1] * 8, [1] * 16)


if __name__ == "__main__":
    run(main, __doc__)
