"""Sends, receives and reduces among all ranks; rank 0 prints the route to each peer, and why.

    torchrun --nproc-per-node 2 examples/cluster/two_nodes.py     # one node

README.md in the same folder shows how to start the program on the nodes of a cluster.
"""

import textwrap
from collections import Counter

import torch
import torch.distributed as dist

import dlslime_backend

NBYTES = 1 << 20


def message(source: int, target: int) -> torch.Tensor:
    """Return 1 MiB that differs for each pair of ranks."""
    generator = torch.Generator().manual_seed(1000 * source + target)
    return torch.randint(256, (NBYTES,), generator=generator, dtype=torch.uint8)


def check_messages(rank: int, world: int) -> None:
    """Every rank sends 1 MiB to every other rank, all at once."""
    peers = [peer for peer in range(world) if peer != rank]
    received = {peer: torch.zeros(NBYTES, dtype=torch.uint8) for peer in peers}
    ops = [dist.P2POp(dist.irecv, received[peer], peer) for peer in peers]
    ops += [dist.P2POp(dist.isend, message(rank, peer), peer) for peer in peers]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for peer in peers:
        assert torch.equal(received[peer], message(peer, rank)), f"rank {peer}'s bytes changed"


def check_all_reduce(rank: int, world: int) -> None:
    """An all-reduce adds up the tensors of all ranks."""
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == world * (world + 1) / 2).all()


def routes(world: int) -> list[str]:
    """Return lines about the route from this rank to each peer, and about all routes together."""
    found = [dlslime_backend.explain(peer) for peer in range(world) if peer != dist.get_rank()]
    lines = [
        textwrap.fill(peer["text"], 100, initial_indent="  ", subsequent_indent="    ")
        for peer in found
    ]
    counts = Counter(peer["route"] for peer in found)
    summary = ", ".join(f"{count} over {route}" for route, count in counts.items())
    return [*lines, f"Peers: {summary}"]


def check() -> str:
    """Check messages and all-reduce in the default group; return a report by rank 0, else ""."""
    rank, world = dist.get_rank(), dist.get_world_size()
    lines = [f"dlslime, {world} ranks, torch {torch.__version__}"]
    for step in (check_messages, check_all_reduce):
        step(rank, world)
        lines.append(f"ok: {step.__doc__}")
    if rank == 0:
        lines += ["Routes from rank 0:", *routes(world)]
    dist.barrier()  # no rank ends while rank 0 asks for the routes
    return "\n".join(lines) if rank == 0 else ""


if __name__ == "__main__":
    dist.init_process_group("dlslime")
    if report := check():
        print(report, flush=True)
    dist.destroy_process_group()
