"""Generation K: a write with a number, and a target that asks for the number afterwards."""

from dlslime import RDMAEndpoint
from ends import Ends, run
from pairs import key_of, keys_pair


def main(ends: Ends) -> None:
    pair = keys_pair(ends, RDMAEndpoint)
    if ends.initiator:
        piece = key_of("initiator"), key_of("target"), 0, 8, 8
        writing = pair.initiator.write_with_imm([piece], 1, None)
    if ends.target:
        told = pair.target.imm_recv(None)
    if ends.initiator:
        assert writing.wait() == 0
    if ends.target:
        assert told.wait() == 0
        assert told.imm_data() == 1
    pair.expect([0] * 16, [0] * 8 + [1] * 8)
    pair.drop()


if __name__ == "__main__":
    run(main, __doc__)
