"""Generation A, package `slime` of March 2025: coroutines that read and return a status."""

import asyncio
import json

import slime
from ends import ROLES, Ends, Memory, other, run


def main(ends: Ends) -> None:
    nics = slime.avaliable_nic()
    devices = dict(zip(ROLES, (nics[0], nics[-1])))
    memory = Memory(ends)
    endpoints = {}
    for role in ends.roles:
        endpoint = slime.RDMAEndpoint(devices[role], ib_port=1, link_type="Ethernet")
        endpoint.register_memory_region("buffer", memory[role].data_ptr(), memory[role].numel())
        endpoints[role] = endpoint
    infos = ends.exchange({role: endpoints[role].local_endpoint_info for role in ends.roles})
    assert all(isinstance(info, str) for info in infos.values())
    for role in ends.roles:
        assert endpoints[role].connect_to(infos[other(role)]) is None

    if ends.initiator:
        initiator = endpoints["initiator"]
        assert asyncio.run(initiator.async_read_batch("buffer", [0, 4], [8, 12], 4)) == 0
        assert asyncio.run(initiator.async_read("buffer", 15, 0, 1)) == 0
        regions = json.dumps({"mr_info": json.loads(infos["target"])["mr_info"]})
        initiator.register_remote_memory_region(regions)
        assert asyncio.run(initiator.async_read("buffer", 0, 1, 1)) == 0
    memory.expect([1, 1] + [0] * 6 + [1] * 8, [1] * 16)
    for endpoint in endpoints.values():
        endpoint.stop()


if __name__ == "__main__":
    run(main, __doc__)
