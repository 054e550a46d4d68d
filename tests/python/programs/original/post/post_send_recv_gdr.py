"""Generation B: the pieces of two rdma_buffers, with unregistered memory."""

import dlslime
from dlslime import _slime_c
from ends import ROLES, Ends, expect, numbers, other, run

PIECES, NBYTES = 2, 1024


def main(ends: Ends) -> None:
    nics = dlslime.available_nic()
    devices = dict(zip(ROLES, (nics[0], nics[1 % len(nics)])))
    endpoints = {role: _slime_c.rdma_endpoint(devices[role], 1, "RoCE", 1) for role in ends.roles}
    contents = [numbers(NBYTES, seed) for seed in range(PIECES)]
    memory = {role: [ends.bytes(NBYTES, 0) for _ in contents] for role in ends.roles}
    buffers = {}
    for role in ends.roles:
        pointers = [piece.data_ptr() for piece in memory[role]]
        shape = [0] * PIECES, [NBYTES] * PIECES
        buffers[role] = _slime_c.rdma_buffer(endpoints[role], pointers, *shape)
    if ends.initiator:
        for piece, content in zip(memory["initiator"], contents):
            piece.copy_(content)

    datas = ends.exchange({r: e.get_data_context_info() for r, e in endpoints.items()})
    metas = ends.exchange({r: e.get_meta_context_info() for r, e in endpoints.items()})
    for role, endpoint in endpoints.items():
        endpoint.context_connect(datas[other(role)], metas[other(role)])

    if ends.initiator:
        assert buffers["initiator"].send() is None
    if ends.target:
        assert buffers["target"].recv() is None
    if ends.initiator:
        assert buffers["initiator"].wait_send() is True
    if ends.target:
        assert buffers["target"].wait_recv() is True
    for role, pieces in memory.items():
        for number, piece in enumerate(pieces):
            expect(piece, contents[number], f"piece {number} of the {role}")
    ends.meet()


if __name__ == "__main__":
    run(main, __doc__)
