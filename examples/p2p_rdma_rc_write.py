"""The initiator writes 8 bytes into the target's memory, without any action of the target.

    python examples/p2p_rdma_rc_write.py [--device cuda]

runs both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_write.py --role target $URLS &
    python examples/p2p_rdma_rc_write.py --role initiator $URLS

pair.py connects the two ends.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # content of the initiator's and the target's memory


def play(side: Side) -> None:
    """Register memory at both ends; then the initiator writes, and the target checks the bytes."""
    content = OURS if side.initiator else THEIRS
    memory = torch.tensor(content, dtype=torch.uint8, device=side.device)
    region = dlslime.register(memory, name=f"memory of the {side.role}")
    remote = side.swap(region)
    if side.initiator:
        transfer = side.endpoint.write(region, remote, [(8, 0, 8)])  # local offset, remote, bytes
        transfer.wait()  # raises if the write failed
    side.meet()
    expect(memory, OURS if side.initiator else [*OURS[8:], *THEIRS[8:]])
    region.deregister()
    side.report("wrote 8 bytes of offset 8 to offset 0", "has the 8 bytes at offset 0")


if __name__ == "__main__":
    run(__doc__, play)
