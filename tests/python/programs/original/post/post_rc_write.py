"""Generation B: writes 8 bytes into the target's memory, asynchronously."""

from dlslime import Assignment, RDMAEndpoint
from ends import Ends, run
from pairs import NAME, post_pair


def main(ends: Ends) -> None:
    pair = post_pair(ends, RDMAEndpoint)
    if ends.initiator:
        piece = Assignment(mr_key=NAME, target_offset=0, source_offset=8, length=8)
        assert pair.initiator.write_batch([piece], async_op=True).wait() is None
    pair.expect([0] * 16, [0] * 8 + [1] * 8)


if __name__ == "__main__":
    run(main, __doc__)
