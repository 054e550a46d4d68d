"""Generation A under later names: `dlslime` early in 0.0.1, with the coroutines renamed."""

import asyncio

import dlslime
from ends import ROLES, Ends, Memory, other, run


def main(ends: Ends) -> None:
    nics = dlslime.available_nic()
    devices = dict(zip(ROLES, (nics[0], nics[-1])))
    memory = Memory(ends)
    endpoints = {}
    for role in ends.roles:
        endpoint = dlslime.RDMAEndpoint(devices[role], ib_port=1, link_type="Ethernet")
        address, length = memory[role].data_ptr(), memory[role].numel()
        endpoint.register_memory_region(
            mr_identifier="buffer", virtual_address=address, length_bytes=length
        )
        endpoints[role] = endpoint
    infos = ends.exchange({role: endpoints[role].local_endpoint_info for role in ends.roles})
    for role in ends.roles:
        endpoints[role].connect_to(infos[other(role)])

    if ends.initiator:
        initiator = endpoints["initiator"]
        assert asyncio.run(initiator.read_batch_async("buffer", [0], [8], 8)) == 0
        assert asyncio.run(initiator.read_async("buffer", 0, 0, 1)) == 0
    memory.expect([1] + [0] * 7 + [1] * 8, [1] * 16)


if __name__ == "__main__":
    run(main, __doc__)
