"""Generation C: the end of an endpoint gives pending receives the result 403."""

from dlslime import RDMAEndpoint
from ends import expect
from stress import Loop, at_once, run_each, wait_all

PENDING = 8


def main(device: str, num_qp: int) -> None:
    loop = Loop(RDMAEndpoint, device, num_qp)
    initiator, target = loop.endpoints
    numbers = [target.imm_recv() for _ in range(PENDING)]
    messages = [target.recv((loop.remote.data_ptr(), 0, 64), None) for _ in range(PENDING)]
    assert [number.imm_data() for number in numbers] == [0] * PENDING  # returns at once

    # Threads wait for half of the numbers already.
    found = at_once(*(number.wait for number in numbers[:4]), target.shutdown)
    assert found[:4] == [403] * 4, found
    assert wait_all(numbers) == {403}
    assert wait_all(messages) == {403}
    assert target.shutdown() is None
    initiator.shutdown()
    expect(loop.local, [0] * 4096, "the initiator's memory")
    expect(loop.remote, [1] * 4096, "the target's memory")

    again = Loop(RDMAEndpoint, device, num_qp)  # other endpoints are not disturbed
    assert again.endpoints[0].read([(0, 0, 0, 0, 8)]).wait() == 0
    expect(again.local, [1] * 8 + [0] * 4088, "the memory of the next pair")
    again.shutdown()


if __name__ == "__main__":
    run_each(main, __doc__)
