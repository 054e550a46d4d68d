"""The initiator reads the memory of another GPU of its host, by NVLink where it joins the two.

    URLS="--initiator-url 127.0.0.1:29610 --target-url 127.0.0.1:29611"
    python examples/p2p_nvlink.py --role target --device cuda:1 $URLS &
    python examples/p2p_nvlink.py --role initiator --device cuda:0 $URLS

There are always two processes, since CUDA shares memory between processes by its IPC (route: shm).
Both may have the same GPU, or the memory of the host (no --device). The same program reads between
two hosts, by their NICs. How the two ends meet is in pair.py.
"""

import torch
from pair import Side, expect, run  # examples/pair.py

import dlslime_backend as dlslime

OURS, THEIRS = range(16), range(100, 116)  # what the memory of the initiator and the target has


def play(side: Side) -> None:
    """Both ends register memory of their device; then the initiator reads."""
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
    run(__doc__, play, both=False)
