"""The initiator sends four messages; the target receives the messages in the same order.

    python examples/p2p_rdma_rc_send_recv.py [--device cuda]

runs both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_send_recv.py --role target $URLS &
    python examples/p2p_rdma_rc_send_recv.py --role initiator $URLS

No memory is registered: sends and receives take any contiguous tensors. pair.py connects the two
ends.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

# Begin of each message of 4 numbers, in the memory of the initiator and of the target.
SENT, RECEIVED = (0, 8, 4, 12), (0, 4, 8, 12)


def play(side: Side) -> None:
    """Send and receive four messages; the nth send matches the nth receive with its tag."""
    if side.initiator:
        numbers = torch.arange(16, dtype=torch.int32, device=side.device)
        transfers = [side.endpoint.send(numbers[at : at + 4]) for at in SENT]
    else:
        numbers = torch.full((16,), -1, dtype=torch.int32, device=side.device)
        # The first receive has room for more bytes than the first message has.
        parts = [numbers, *(numbers[at : at + 4] for at in RECEIVED[1:])]
        transfers = [side.endpoint.recv(part) for part in parts]
    for transfer in transfers:
        transfer.wait()  # raises if the operation failed
    arrived = [number for at in SENT for number in range(at, at + 4)]
    expect(numbers, range(16) if side.initiator else arrived)
    side.report("sent 4 messages of 16 bytes", f"received {numbers.tolist()}")


if __name__ == "__main__":
    run(__doc__, play)
