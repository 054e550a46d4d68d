"""Generation K: keys that are addresses, and a key registered again for other memory."""

from dlslime import RDMAEndpoint
from ends import Ends, expect, run
from pairs import key_of, keys_pair


def main(ends: Ends) -> None:
    pair = keys_pair(ends, RDMAEndpoint)
    later = ends.bytes(16, 7)
    if ends.initiator:
        endpoint, address = pair.initiator, later.data_ptr()
        mine, theirs = key_of("initiator"), key_of("target")
        endpoint.register_memory_region(address, address, 0, 16)
        assert endpoint.read([(address, theirs, 0, 8, 8)]).wait() == 0
        endpoint.register_memory_region(mine, address, 0, 16)
        assert endpoint.read([(mine, theirs, 0, 0, 4)]).wait() == 0
        expect(later, [1] * 4 + [7] * 4 + [1] * 8, "what two keys mean")
    pair.expect([0] * 16, [1] * 16)


if __name__ == "__main__":
    run(main, __doc__)
