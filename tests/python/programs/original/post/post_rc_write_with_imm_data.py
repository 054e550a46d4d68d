"""Generation B: a write with a number uses up a receive, but the receive's memory is unchanged."""

from dlslime import Assignment, RDMAEndpoint
from ends import Ends, run
from pairs import NAME, post_pair


def main(ends: Ends) -> None:
    pair = post_pair(ends, RDMAEndpoint)
    writing = receiving = None
    if ends.initiator:
        piece = Assignment(mr_key=NAME, target_offset=0, source_offset=8, length=8)
        writing = pair.initiator.write_batch_with_imm_data(
            [piece], qpi=0, imm_data=1, async_op=True
        )
    if ends.target:
        piece = Assignment(mr_key=NAME, target_offset=0, source_offset=8, length=8)
        receiving = pair.target.recv_batch([piece], qpi=0, async_op=True)
    if writing is not None:
        assert writing.wait() is None
    if receiving is not None:
        assert receiving.wait() is None
    pair.expect([0] * 16, [0] * 8 + [1] * 8)


if __name__ == "__main__":
    run(main, __doc__)
