"""The initiator reads the memory of another GPU of the host, over NVLink if the GPUs have a link.

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_nvlink.py --role target --device cuda:1 $URLS &
    python examples/p2p_nvlink.py --role initiator --device cuda:0 $URLS

The example always runs in two processes, since CUDA IPC shares memory between processes (route:
shm). Both may use one GPU, or host memory (without --device). Between two hosts the program reads
over RDMA. pair.py connects the two ends.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # content of the initiator's and the target's memory


def play(side: Side) -> None:
    """Register memory of the device at both ends; then the initiator reads."""
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
    run(__doc__, play, both=False)
