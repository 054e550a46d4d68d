"""The initiator writes into the target's memory, and then notifies the target by a number.

    python examples/p2p_rdma_rc_write_with_imm_data.py [--device cuda]

runs both ends in one process. In two (on two hosts: with their addresses instead of 127.0.0.1):

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_rdma_rc_write_with_imm_data.py --role target $URLS &
    python examples/p2p_rdma_rc_write_with_imm_data.py --role initiator $URLS

pair.py connects the two ends.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # content of the initiator's and the target's memory
NUMBER = 1  # up to 2^32 - 1


def play(side: Side) -> None:
    """Register memory at both ends; the initiator writes, the target waits only for the number."""
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
        expect(memory, [*OURS[8:], *THEIRS[8:]])  # the number comes after all bytes
    side.meet()
    region.deregister()
    side.report("wrote 8 bytes of offset 8 to offset 0, and a number", f"was told {NUMBER}")


if __name__ == "__main__":
    run(__doc__, play)
