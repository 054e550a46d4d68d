"""KV-cache hand-off from prefill to decode ranks, as Megatron-LM does over torch.distributed.

The first half of the ranks prefilled and hold all layers for a part of the heads; the second half
decodes and holds a part of the layers for all heads. For each request each side makes ONE
batch_isend_irecv with an operation for each (peer, block), all with tag 0. `waited` then waits.
`polled` only ever asks `is_completed()`, as an inference engine does to learn of arrivals without
stalling its step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

LAYERS = 4
HEADS = 4
DIM = 16
BLOCK_TOKENS = 32
POOL_BLOCKS = 64
REQUESTS = 12
# Blocks of a request: more than one operation for a peer, with a number that differs by request.
BLOCKS_OF = [1 + 5 * request % 7 for request in range(REQUESTS)]
POLL_SECONDS = 30


@dataclass
class Transfer:
    """A request's operations, and actions for the time when all operations are complete."""

    works: list[dist.Work]
    on_done: list[Callable[[], None]] = field(default_factory=list)

    def finish(self) -> None:
        """Run the actions that had to wait for completion."""
        for action in self.on_done:
            action()


def kv_block(request: int, block: int) -> torch.Tensor:
    """Return the result of prefill: [2, layers, tokens, heads, dim], different for every block."""
    generator = torch.Generator().manual_seed(1000 * request + block)
    return torch.randn(2, LAYERS, BLOCK_TOKENS, HEADS, DIM, generator=generator)


def block_table(request: int) -> list[int]:
    """Return the places of a request's blocks in the decoder's pool: scattered, in no order."""
    first = sum(BLOCKS_OF[:request])
    return [(first + i) * 37 % POOL_BLOCKS for i in range(BLOCKS_OF[request])]


def parts(length: int, count: int) -> list[slice]:
    """Cut a dimension into equal slices."""
    step = length // count
    return [slice(i * step, (i + 1) * step) for i in range(count)]


def send_request(request: int, rank: int, half: int) -> Transfer:
    """Send the rank's heads of every block, to each decoder the layers held by the decoder."""
    mine = parts(HEADS, half)[rank]
    ops, buffers = [], []
    for peer, layers in enumerate(parts(LAYERS, half)):
        for block in range(BLOCKS_OF[request]):
            buffers.append(kv_block(request, block)[:, layers, :, mine].contiguous())
            ops.append(dist.P2POp(dist.isend, buffers[-1], half + peer))
    works = dist.batch_isend_irecv(ops)
    # The fill shows whether a completed send still reads its buffer.
    return Transfer(works, [lambda b=b: b.fill_(float("nan")) for b in buffers])


def receive_request(request: int, rank: int, half: int, pool: torch.Tensor) -> Transfer:
    """Receive all heads of the rank's layers, and scatter the heads into the pool."""
    layers = parts(LAYERS, half)[rank - half]
    ops, scatters = [], []
    for peer, heads in enumerate(parts(HEADS, half)):
        for page in block_table(request):
            shape = (2, layers.stop - layers.start, BLOCK_TOKENS, heads.stop - heads.start, DIM)
            buffer = torch.empty(shape)
            ops.append(dist.P2POp(dist.irecv, buffer, peer))
            scatters.append(lambda b=buffer, p=page, h=heads: pool[p][..., h, :].copy_(b))
    return Transfer(dist.batch_isend_irecv(ops), scatters)


def poll(transfers: list[Transfer]) -> None:
    """Finish transfers as they complete, newest first, without ever waiting for a transfer."""
    deadline = time.monotonic() + POLL_SECONDS
    pending = transfers[::-1]
    while pending:
        for transfer in [t for t in pending if all(w.is_completed() for w in t.works)]:
            transfer.finish()
            pending.remove(transfer)
        late = [sum(not w.is_completed() for w in t.works) for t in pending]
        assert time.monotonic() < deadline, f"incomplete after {POLL_SECONDS} s: {late} operations"
        time.sleep(0.0005)


def wait(transfers: list[Transfer]) -> None:
    """Wait for transfers in the order of their start."""
    for transfer in transfers:
        for work in transfer.works:
            work.wait()
        transfer.finish()


def hand_off(complete: Callable[[list[Transfer]], None]) -> None:
    """Hand all requests over, several in flight at a time, and check the decoders' pools."""
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    decodes = rank >= half
    layers = parts(LAYERS, half)[rank - half] if decodes else slice(0, 0)
    pool = torch.zeros(POOL_BLOCKS, 2, layers.stop - layers.start, BLOCK_TOKENS, HEADS, DIM)
    for start in range(0, REQUESTS, 4):
        transfers = []
        for request in range(start, start + 4):
            if decodes:
                transfers.append(receive_request(request, rank, half, pool))
            else:
                transfers.append(send_request(request, rank, half))
        complete(transfers)
    for request in range(REQUESTS if decodes else 0):
        for block, page in enumerate(block_table(request)):
            torch.testing.assert_close(
                pool[page], kv_block(request, block)[:, layers], rtol=0, atol=0
            )


def waited() -> None:
    """The path that every backend offers."""
    hand_off(wait)


def polled() -> None:
    """The path that needs `is_completed()` to become true without a wait."""
    hand_off(poll)
