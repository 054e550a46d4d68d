"""The initiator reads 8 bytes of the target's memory, which does nothing for it.

    python examples/p2p_rdma_rc_read.py [--device cuda]

has both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_read.py --role target $URLS &
    python examples/p2p_rdma_rc_read.py --role initiator $URLS

How the two ends meet is in pair.py.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # what the memory of the initiator and the target has


def play(side: Side) -> None:
    """Both ends register their memory; then the initiator reads."""
    content = OURS if side.initiator else THEIRS
    memory = torch.tensor(content, dtype=torch.uint8, device=side.device)
    region = dlslime.register(memory, name=f"memory of the {side.role}")
    remote = side.swap(region)
    if side.initiator:
        transfer = side.endpoint.read(region, remote, [(8, 0, 8)])  # local offset, remote, bytes
        transfer.wait()  # raises if it has failed
    side.meet()
    expect(memory, [*OURS[:8], *THEIRS[:8]] if side.initiator else THEIRS)
    region.deregister()
    side.report("read 8 bytes of offset 0 to offset 8", "lent its memory")


if __name__ == "__main__":
    run(__doc__, play)
