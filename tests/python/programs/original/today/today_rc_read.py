"""Generation C: reads, with the handles that registering returned."""

from dlslime import RDMAEndpoint
from ends import Ends, run
from pairs import today_pair


def main(ends: Ends) -> None:
    pair, handle, remote = today_pair(ends, RDMAEndpoint)
    if ends.initiator:
        future = pair.initiator.read([(handle, remote, 0, 8, 8)], None)
        assert future.wait() == 0
    pair.expect([0] * 8 + [1] * 8, [1] * 16)
    pair.drop()


if __name__ == "__main__":
    run(main, __doc__)
