"""Generation C: more messages under way than places of an endpoint, the nth to the nth."""

from dlslime import RDMAEndpoint
from ends import expect, numbers
from stress import Loop, at_once, chunks, run_each, wait_all

COUNT, LENGTH = 1200, 64  # 1,024 are under way


def main(device: str, num_qp: int) -> None:
    loop = Loop(RDMAEndpoint, device, num_qp, COUNT * LENGTH)
    sender, receiver = loop.endpoints
    content = numbers(COUNT * LENGTH, num_qp)
    loop.local.copy_(content)

    first = sender.send((loop.local.data_ptr(), 0, LENGTH), None)
    assert receiver.recv((loop.remote.data_ptr(), 0, LENGTH), None).wait() == 0
    assert first.wait() == 0
    expect(loop.remote[:LENGTH], content[:LENGTH], "the first message")
    loop.remote.fill_(1)

    def send() -> set[int]:
        return wait_all([sender.send(chunk, None) for chunk in chunks(loop.local, LENGTH)])

    def receive() -> set[int]:
        return wait_all([receiver.recv(chunk, None) for chunk in chunks(loop.remote, LENGTH)])

    assert at_once(send, receive) == [{0}, {0}]
    expect(loop.remote, content, "what came")
    expect(loop.local, content, "what was sent")
    loop.shutdown()


if __name__ == "__main__":
    run_each(main, __doc__)
