"""Pipeline-parallel message loops of inference engines: pickled headers, tensors, and tags."""

from __future__ import annotations

import pickle
import time
from collections import deque

import torch
import torch.distributed as dist

STEPS = 30
# SGLang's tags for proxy tensors, graph decisions and requests: 31 bits are in use.
PROXY_TAG, GRAPH_TAG, REQUEST_TAG = 0x50704869, 0x50704772, 0x50704273
DRAIN_SECONDS = 30


def to_bytes(thing: object) -> torch.Tensor:
    """Pickle an object into a uint8 tensor."""
    return torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)


def send_object(thing: object, dst: int, tag: int = 0) -> list[dist.Work]:
    """Send the length as long[1], then the bytes; the caller drops both tensors at once."""
    payload = to_bytes(thing)
    length = torch.tensor([payload.numel()], dtype=torch.long)
    return [dist.isend(length, dst, tag=tag), dist.isend(payload, dst, tag=tag)]


def receive_object(src: int, tag: int = 0) -> object:
    """Receive an object sent by `send_object`."""
    length = torch.empty(1, dtype=torch.long)
    assert dist.recv(length, src, tag=tag) == src
    payload = torch.empty(int(length.item()), dtype=torch.uint8)
    assert dist.recv(payload, src, tag=tag) == src
    return pickle.loads(payload.numpy().tobytes())


def hidden_states(step: int) -> dict[str, torch.Tensor]:
    """Return a step's tensors, with a number of tokens that changes with every step."""
    tokens = 1 + step * 13 % 40
    return {
        "hidden": torch.full((tokens, 64), float(step), dtype=torch.bfloat16),
        "residual": torch.full((tokens, 64), -float(step), dtype=torch.bfloat16),
        "positions": torch.arange(tokens) + step,
        "empty": torch.empty(0, 64),
    }


def send_tensors(tensors: dict[str, torch.Tensor], dst: int) -> list[dist.Work]:
    """Send a header with shapes, then each tensor with elements, as vLLM's send_tensor_dict."""
    header = {name: (t.shape, t.dtype) for name, t in tensors.items()}
    works = send_object(header, dst)
    return works + [dist.isend(t, dst) for t in tensors.values() if t.numel()]


def receive_tensors(src: int) -> dict[str, torch.Tensor]:
    """Receive the tensors of `send_tensors`: post all receives before the first wait."""
    header = receive_object(src)
    assert isinstance(header, dict)
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in header.items()}
    works = [dist.irecv(t, src) for t in tensors.values() if t.numel()]
    for work in works:
        work.wait()
    return tensors


def check_step(tensors: dict[str, torch.Tensor], step: int) -> None:
    """Compare a step's tensors with the tensors sent."""
    expected = hidden_states(step)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name]), f"step {step}: {name} differs"


def vllm_pipeline() -> None:
    """Each rank passes tensors on, and waits for the sends of a step in the next step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    previous: list[dist.Work] = []
    for step in range(STEPS):
        tensors = receive_tensors(rank - 1) if rank > 0 else hidden_states(step)
        check_step(tensors, step)
        for work in previous:
            work.wait()
        previous = send_tensors(tensors, rank + 1) if rank + 1 < world else []
    for work in previous:
        work.wait()


def vllm_pipeline_reaped_by_polling() -> None:
    """Handles wait in a FIFO until `is_completed()`; the FIFO must drain without any wait."""
    rank, world = dist.get_rank(), dist.get_world_size()
    fifo: deque[dist.Work] = deque()
    for step in range(STEPS):
        tensors = receive_tensors(rank - 1) if rank > 0 else hidden_states(step)
        check_step(tensors, step)
        if rank + 1 < world:
            fifo.extend(send_tensors(tensors, rank + 1))
        while fifo and fifo[0].is_completed():
            fifo.popleft()
    deadline = time.monotonic() + DRAIN_SECONDS
    while fifo:
        if fifo[0].is_completed():
            fifo.popleft()
        assert time.monotonic() < deadline, f"{len(fifo)} sends never completed"
        time.sleep(0.0005)


def sglang_tags() -> None:
    """Three kinds of message go round at once, received in another order by their tags."""
    rank, world = dist.get_rank(), dist.get_world_size()
    following, preceding = (rank + 1) % world, (rank - 1) % world
    for step in range(STEPS):
        works = send_object({"requests": list(range(step)), "from": rank}, following, REQUEST_TAG)
        works += send_object(("graph", step % 2 == 0), following, GRAPH_TAG)
        works += [dist.isend(torch.full((8, 8), step + rank), following, tag=PROXY_TAG)]
        works += [dist.isend(torch.tensor([step]), following)]

        untagged, proxy = torch.empty(1, dtype=torch.long), torch.empty(8, 8, dtype=torch.long)
        late = [dist.irecv(untagged, preceding), dist.irecv(proxy, preceding, tag=PROXY_TAG)]
        assert receive_object(preceding, GRAPH_TAG) == ("graph", step % 2 == 0)
        expected = {"requests": list(range(step)), "from": preceding}
        assert receive_object(preceding, REQUEST_TAG) == expected
        for work in late + works:
            work.wait()
        assert untagged.item() == step
        assert (proxy == step + preceding).all()


def torch_objects() -> None:
    """torch's own object sends, singly and as one batch, in a ring."""
    rank, world = dist.get_rank(), dist.get_world_size()
    following, preceding = (rank + 1) % world, (rank - 1) % world
    for use_batch in (False, True):
        sent = [{"rank": rank, "tensor": torch.arange(rank + 3)}, "text", None]
        got: list = [None, None, "not received"]
        for sender in range(world):
            if rank == sender:
                dist.send_object_list(sent, following, use_batch=use_batch)
            elif rank == (sender + 1) % world:
                assert dist.recv_object_list(got, preceding, use_batch=use_batch) == preceding
        assert got[0]["rank"] == preceding
        assert torch.equal(got[0]["tensor"], torch.arange(preceding + 3))
        assert got[1:] == ["text", None]
