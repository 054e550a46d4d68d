"""The initiator sends 262,144 bytes of GPU memory before the target asks for them.

    python examples/p2p_rdma_rc_send_recv_gdr.py --device cuda

has both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_send_recv_gdr.py --device cuda --role target $URLS &
    python examples/p2p_rdma_rc_send_recv_gdr.py --device cuda --role initiator $URLS

Without --device it is memory of the host. Between hosts the NIC reads and writes the memory of the
GPUs where it can (GPUDirect), else pinned memory of the hosts; `python -m dlslime_backend doctor`
tells which. How the two ends meet is in pair.py.
"""

import torch
from pair import Side, run  # examples/pair.py

NBYTES = 262_144


def play(side: Side) -> None:
    """The send is under way, and waits for nobody, when the target begins to receive."""
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
    transfer.wait()  # raises if it has failed
    assert torch.equal(memory.cpu(), content), "the bytes are not those that were sent"
    side.report(f"sent {NBYTES:,} bytes", f"received {NBYTES:,} bytes")


if __name__ == "__main__":
    run(__doc__, play)
