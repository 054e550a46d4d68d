"""The initiator writes into the target's memory, and a number tells the target that it has.

    python examples/p2p_rdma_rc_write_with_imm_data.py [--device cuda]

has both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_write_with_imm_data.py --role target $URLS &
    python examples/p2p_rdma_rc_write_with_imm_data.py --role initiator $URLS

How the two ends meet is in pair.py.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # what the memory of the initiator and the target has
NUMBER = 1  # up to 2^32 - 1


def play(side: Side) -> None:
    """Both ends register their memory; the target waits for the number, and nothing else."""
    content = OURS if side.initiator else THEIRS
    memory = torch.tensor(content, dtype=torch.uint8, device=side.device)
    region = dlslime.register(memory, name=f"memory of the {side.role}")
    remote = side.swap(region)
    if side.initiator:
        pieces = [(8, 0, 8)]  # local offset, remote offset, bytes
        side.endpoint.write_with_imm(region, remote, pieces, imm=NUMBER).wait()
        expect(memory, OURS)
    else:
        number = side.endpoint.expect_imm().wait()
        assert number == NUMBER
        expect(memory, [*OURS[8:], *THEIRS[8:]])  # all bytes are there when the number is
    side.meet()
    region.deregister()
    side.report("wrote 8 bytes of offset 8 to offset 0, and a number", f"was told {NUMBER}")


if __name__ == "__main__":
    run(__doc__, play)
