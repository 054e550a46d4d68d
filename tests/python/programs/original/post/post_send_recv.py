"""Generation B: four messages, the first shorter than its receive.

The memory is registered after the endpoints are connected.
"""

import dlslime
import torch
from dlslime import Assignment
from ends import ROLES, Ends, expect, other, run

PIECES = 16  # int32
SENT = [0, 32, 16, 48]
RECEIVED = [(0, 64), (16, 16), (32, 16), (48, 16)]


def message(offset: int, length: int) -> Assignment:
    """Return a message; the target's offset has no effect."""
    return Assignment(mr_key="buffer", target_offset=0, source_offset=offset, length=length)


def main(ends: Ends) -> None:
    nics = dlslime.available_nic()
    devices = dict(zip(ROLES, (nics[0], nics[1 % len(nics)])))
    endpoints = {role: dlslime.RDMAEndpoint(devices[role]) for role in ends.roles}
    infos = ends.exchange({role: endpoints[role].endpoint_info for role in ends.roles})
    for role in ends.roles:
        endpoints[role].connect(infos[other(role)])

    filled = {"initiator": torch.arange(PIECES), "target": torch.full((PIECES,), -1)}
    buffers = {role: filled[role].to(ends.device, torch.int32) for role in ends.roles}
    for role, buffer in buffers.items():
        nbytes = buffer.numel() * buffer.itemsize
        endpoints[role].register_memory_region("buffer", buffer.data_ptr(), 0, nbytes)

    under_way = []
    if ends.initiator:
        batch = [message(offset, 16) for offset in SENT]
        under_way.append(endpoints["initiator"].send_batch(batch, async_op=True))
    if ends.target:
        batch = [message(offset, length) for offset, length in RECEIVED]
        under_way.append(endpoints["target"].recv_batch(batch, async_op=True))
    for future in under_way:
        assert future.wait() is None

    print(buffers)
    expect(buffers.get("initiator"), list(range(16)), "what was sent")
    came = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    expect(buffers.get("target"), came, "what came")
    ends.meet()


if __name__ == "__main__":
    run(main, __doc__)
