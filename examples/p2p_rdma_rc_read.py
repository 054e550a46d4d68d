"""The initiator reads 8 bytes of the target's memory, without any action of the target.

    python examples/p2p_rdma_rc_read.py [--device cuda]

runs both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_read.py --role target $URLS &
    python examples/p2p_rdma_rc_read.py --role initiator $URLS

pair.py connects the two ends.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # content of the initiator's and the target's memory


def play(side: Side) -> None:
    """Register memory at both ends; then the initiator reads."""
    content = OURS if side.initiator else THEIRS
    memory = torch.tensor(content, dtype=torch.uint8, device=side.device)
    region = dlslime.register(memory, name=f"memory of the {side.role}")
    remote = side.swap(region)
    if side.initiator:
        transfer = side.endpoint.read(region, remote, [(8, 0, 8)])  # local offset, remote, bytes
        transfer.wait()  # raises if the read failed
    side.meet()
    expect(memory, [*OURS[:8], *THEIRS[:8]] if side.initiator else THEIRS)
    region.deregister()
    side.report("read 8 bytes of offset 0 to offset 8", "lent its memory")


if __name__ == "__main__":
    run(__doc__, play)
