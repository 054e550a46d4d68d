"""Generation K: reads, with regions under hashes of 64 bits."""

from dlslime import RDMAEndpoint
from ends import Ends, run
from pairs import key_of, keys_pair


def main(ends: Ends) -> None:
    pair = keys_pair(ends, RDMAEndpoint)
    if ends.initiator:
        piece = key_of("initiator"), key_of("target"), 0, 8, 8
        assert pair.initiator.read([piece], None).wait() == 0
    pair.expect([0] * 8 + [1] * 8, [1] * 16)
    pair.drop()


if __name__ == "__main__":
    run(main, __doc__)
