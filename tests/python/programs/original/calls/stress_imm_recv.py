"""Generation C: more numbers than places of an endpoint, signed, and some that come early."""

from typing import Any

from dlslime import RDMAEndpoint
from ends import expect
from stress import Loop, at_once, run_each, wait_all

COUNT = 2500  # 2,048 are under way
EARLY = 20


def main(device: str, num_qp: int) -> None:
    loop = Loop(RDMAEndpoint, device, num_qp)
    initiator, target = loop.endpoints
    early = [initiator.write_with_imm([(0, 0, 8, 0, 8)], number - 10) for number in range(EARLY)]
    assert wait_all(early) == {0}
    kept = [target.imm_recv() for _ in range(EARLY)]
    assert numbers_of(kept, num_qp) == list(range(-10, 10))

    def write() -> set[int]:
        pieces = ((0, 0, 16 + number % 64, number % 8, 1) for number in range(COUNT))
        return wait_all([initiator.write_with_imm([p], n) for n, p in enumerate(pieces)])

    def receive() -> list[int]:
        return numbers_of([target.imm_recv() for _ in range(COUNT)], num_qp)

    written, found = at_once(write, receive)
    assert written == {0}
    assert found == list(range(COUNT))
    wanted = [0 if 8 <= place < 80 else 1 for place in range(4096)]
    expect(loop.remote, wanted, "the target's memory")
    expect(loop.local, [0] * 4096, "the initiator's memory")
    loop.shutdown()


def numbers_of(futures: list[Any], num_qp: int) -> list[int]:
    """Wait for all futures, and return the numbers; several queue pairs promise no order."""
    assert wait_all(futures) == {0}
    found = [future.imm_data() for future in futures]
    return found if num_qp == 1 else sorted(found)


if __name__ == "__main__":
    run_each(main, __doc__)
