"""Two ranks exchange five tensors in one batch, with torch.distributed alone.

    torchrun --nproc-per-node 2 examples/p2p_rdma_rc_send_recv_torch.py [--device cuda]

or without torchrun (on two hosts: with the address of rank 0 instead of 127.0.0.1):

    python examples/p2p_rdma_rc_send_recv_torch.py --rank 0 --url 127.0.0.1:29610 &
    python examples/p2p_rdma_rc_send_recv_torch.py --rank 1 --url 127.0.0.1:29610
"""

import torch
import torch.distributed as dist
from pair import expect, one_line, parse_rank  # examples/pair.py

import dlslime_backend  # for the route only; torch finds the backend by itself

COUNT, LENGTH = 5, 1024  # tensors, numbers in each


def exchange(rank: int, device: torch.device) -> None:
    """Exchange the tensors in one batch, the receives in reverse order: the tags match messages."""
    peer = 1 - rank
    sent = [torch.full((LENGTH,), 10 * rank + tag, device=device) for tag in range(COUNT)]
    received = [torch.full((LENGTH,), -1, device=device) for _ in range(COUNT)]
    ops = [dist.P2POp(dist.irecv, received[tag], peer, tag=tag) for tag in reversed(range(COUNT))]
    ops += [dist.P2POp(dist.isend, sent[tag], peer, tag=tag) for tag in range(COUNT)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for tag in range(COUNT):
        expect(received[tag], [10 * peer + tag] * LENGTH)


def main() -> None:
    """Join the group and exchange; only the name of the backend is specific to dlslime."""
    options = parse_rank(__doc__)
    with one_line():
        dist.init_process_group(backend="dlslime", **options.place)
    rank, device = dist.get_rank(), options.device
    exchange(rank, device)
    route = dlslime_backend.peer(1 - rank).route()
    print(f"rank {rank}: {COUNT} tensors each way (route: {route}, {device})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
