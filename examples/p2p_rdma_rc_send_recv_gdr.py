"""The initiator sends 262,144 bytes of GPU memory before the target posts the receive.

    python examples/p2p_rdma_rc_send_recv_gdr.py --device cuda

runs both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_send_recv_gdr.py --device cuda --role target $URLS &
    python examples/p2p_rdma_rc_send_recv_gdr.py --device cuda --role initiator $URLS

Without --device the memory is host memory. Between hosts the NIC accesses GPU memory if possible
(GPUDirect), else pinned host memory; `python -m dlslime_backend doctor` reports which. pair.py
connects the two ends.
"""

import torch
from pair import Side, run  # examples/pair.py

NBYTES = 262_144


def play(side: Side) -> None:
    """Begin the send before the receive; the send does not wait for the receive."""
    period = torch.arange(251, dtype=torch.uint8)
    content = period.repeat(NBYTES // 251 + 1)[:NBYTES]
    if side.initiator:
        memory = content.to(side.device)
        transfer = side.endpoint.send(memory)
        side.meet()
    else:
        memory = torch.zeros(NBYTES, dtype=torch.uint8, device=side.device)
        side.meet()
        transfer = side.endpoint.recv(memory)
    transfer.wait()  # raises if the operation failed
    assert torch.equal(memory.cpu(), content), "the bytes are not those that were sent"
    side.report(f"sent {NBYTES:,} bytes", f"received {NBYTES:,} bytes")


if __name__ == "__main__":
    run(__doc__, play)
