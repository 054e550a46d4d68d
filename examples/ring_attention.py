"""Ring attention: the sequence is distributed over all ranks; keys and values go round.

    torchrun --nproc-per-node 4 examples/ring_attention.py
    torchrun --nproc-per-node 4 examples/ring_attention.py --backend gloo     # to compare

Each rank owns one block of the sequence. In every round a rank attends from its queries to the
current block of keys and values, while the block is sent to the next rank and the next block
arrives from the preceding rank. The softmax is updated block by block, so the result is attention
over the whole sequence.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


def start_exchange(
    outgoing: list[torch.Tensor], incoming: list[torch.Tensor], group: dist.ProcessGroup | None
) -> list[dist.Work]:
    """Begin to send tensors to the next rank, and to receive as many from the preceding rank."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    following, preceding = (rank + 1) % world, (rank - 1) % world
    ops = [dist.P2POp(dist.isend, t, group=group, group_peer=following) for t in outgoing]
    ops += [dist.P2POp(dist.irecv, t, group=group, group_peer=preceding) for t in incoming]
    return dist.batch_isend_irecv(ops)


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Attend from this rank's queries to the keys and values of all ranks.

    Args:
        q: this rank's block, shape [heads, block, dim]; blocks follow each other in order of rank.
        k: keys of the same positions, same shape.
        v: values of the same positions, same shape.
        causal: whether a position sees only itself and earlier positions.
        group: the ranks that share the sequence; None for all.

    Returns:
        Shape [heads, block, dim]: this rank's block of the attention over the whole sequence.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    block = q.shape[-2]
    positions = torch.arange(block)
    result = torch.zeros_like(q)
    # Of each row so far: the largest score, and the sum of exp(score - largest).
    largest = q.new_full((*q.shape[:-1], 1), float("-inf"))
    total = torch.zeros_like(largest)

    for hop in range(world):
        works = []
        if hop + 1 < world:
            arriving = [torch.empty_like(k), torch.empty_like(v)]
            works = start_exchange([k, v], arriving, group)

        owner = (rank - hop) % world  # rank that owns the current block
        if owner <= rank or not causal:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            if causal and owner == rank:
                scores.masked_fill_(positions[:, None] < positions, float("-inf"))
            new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - new_largest)
            # Earlier sums were scaled by an older maximum.
            correction = torch.exp(largest - new_largest)
            result = result * correction + weights @ v
            total = total * correction + weights.sum(-1, keepdim=True)
            largest = new_largest

        for work in works:
            work.wait()
        if works:
            k, v = arriving
    return result / total


def main() -> None:
    """Compare ring attention with attention over the whole sequence in one process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="dlslime")
    parser.add_argument("--block", type=int, default=512, help="positions per rank")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same sequence on every rank
    heads, dim = 8, 64
    q, k, v = torch.randn(3, heads, world * arguments.block, dim)
    mine = [t.chunk(world, dim=-2)[rank].contiguous() for t in (q, k, v)]

    for causal in (False, True):
        ring_attention(*mine, causal)  # warm up
        dist.barrier()
        started = time.perf_counter()
        got = ring_attention(*mine, causal)
        seconds = time.perf_counter() - started
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(got, expected.chunk(world, dim=-2)[rank], atol=1e-5, rtol=1e-4)
        dist.barrier()  # every rank's block is right
        if rank == 0:
            kind = "causal" if causal else "full"
            print(
                f"{arguments.backend}: {kind} attention over {q.shape[-2]} positions on {world} "
                f"ranks equals that of one process; {seconds * 1e3:.0f} ms"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
