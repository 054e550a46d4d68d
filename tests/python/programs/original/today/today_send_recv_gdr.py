"""Generations K and C: a message between unregistered memory, sent before the receive."""

import dlslime
from dlslime import _slime_c
from ends import ROLES, Ends, expect, numbers, other, run

NBYTES = 262144


def main(ends: Ends) -> None:
    nics = dlslime.available_nic()
    devices = dict(zip(ROLES, (nics[0], nics[1 % len(nics)])))
    endpoints = {role: _slime_c.RDMAEndpoint(devices[role], 1, "RoCE", 1) for role in ends.roles}
    infos = ends.exchange({role: endpoints[role].endpoint_info() for role in ends.roles})
    for role in ends.roles:
        endpoints[role].connect(infos[other(role)])

    buffers = {role: ends.bytes(NBYTES, 0) for role in ends.roles}
    if ends.initiator:
        buffers["initiator"].copy_(numbers(NBYTES))
        sending = endpoints["initiator"].send((buffers["initiator"].data_ptr(), 0, NBYTES), None)
    if ends.target:
        receiving = endpoints["target"].recv((buffers["target"].data_ptr(), 0, NBYTES), None)
    if ends.initiator:
        assert sending.wait() == 0
    if ends.target:
        assert receiving.wait() == 0

    for role, buffer in buffers.items():
        print(role, buffer[:8])
        expect(buffer, numbers(NBYTES), f"the {role}'s memory")
    ends.meet()
    endpoints.clear()


if __name__ == "__main__":
    run(main, __doc__)
