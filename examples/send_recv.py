"""Sends, receives, batches and reduces; prints the route and the speed.

    torchrun --nproc-per-node 2 examples/send_recv.py
    torchrun --nproc-per-node 2 examples/send_recv.py --backend gloo     # to compare

The program is plain torch.distributed with the backend's name. Only `print_route` imports
dlslime_backend, for the route and the reasons for the choice.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20]
BATCH = 64


def pattern(nbytes: int, seed: int) -> torch.Tensor:
    """Return `nbytes` bytes that differ from message to message and repeat after 251."""
    period = (torch.arange(251) + seed).remainder_(251).to(torch.uint8)
    return period.repeat(nbytes // 251 + 1)[:nbytes]


def check_send_recv(rank: int, world: int) -> None:
    """A message of every size goes once around all ranks and comes back unchanged."""
    following, preceding = (rank + 1) % world, (rank - 1) % world
    for seed, size in enumerate([0, *SIZES]):
        message = pattern(size, seed)
        received = torch.zeros_like(message)
        if rank == 0:
            dist.send(message, following)
            dist.recv(received, preceding)
        else:
            dist.recv(received, preceding)
            dist.send(received, following)
        assert torch.equal(received, message), f"{size} bytes arrived changed"


def check_batch(rank: int, world: int) -> None:
    """All ranks exchange with all others at once, in one call; tags tell the messages apart."""
    peers = [peer for peer in range(world) if peer != rank]
    received = {(p, tag): torch.zeros(1000, dtype=torch.uint8) for p in peers for tag in range(8)}
    # The receives are posted in the opposite order of the sends.
    ops = [
        dist.P2POp(dist.irecv, received[p, tag], p, tag=tag)
        for p in peers
        for tag in reversed(range(8))
    ]
    ops += [
        dist.P2POp(dist.isend, pattern(1000, 10 * rank + tag), p, tag=tag)
        for p in peers
        for tag in range(8)
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for (peer, tag), tensor in received.items():
        assert torch.equal(tensor, pattern(1000, 10 * peer + tag))


def check_any_source(rank: int, world: int) -> None:
    """Rank 0 takes messages in the order of arrival and is told the sender of each."""
    if rank > 0:
        dist.send(torch.full((4,), float(rank)), dst=0)
        return
    tensor = torch.empty(4)
    senders = set()
    for _ in range(world - 1):
        sender = dist.recv(tensor)
        assert (tensor == sender).all()
        senders.add(sender)
    assert senders == set(range(1, world))


def check_all_reduce(rank: int, world: int) -> None:
    """Collectives work on the same group."""
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == world * (world + 1) / 2).all()


def one_way_seconds(rank: int, size: int) -> float:
    """Return the median time from rank 0's send to rank 1's receive: half of a round trip."""
    tensor = torch.zeros(size, dtype=torch.uint8)
    times = []
    for _ in range(max(7, min(500, (64 << 20) // size))):
        started = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        times.append((time.perf_counter() - started) / 2)
    return statistics.median(times)


def batch_seconds(rank: int, size: int, count: int) -> float:
    """Return the median time of a batch of `count` messages from rank 0 to 1, with a receipt."""
    receipt = torch.zeros(1)
    tensors = [torch.zeros(size, dtype=torch.uint8) for _ in range(count)]
    op = dist.isend if rank == 0 else dist.irecv
    times = []
    for _ in range(7):
        started = time.perf_counter()
        for work in dist.batch_isend_irecv([dist.P2POp(op, t, 1 - rank) for t in tensors]):
            work.wait()
        dist.recv(receipt, 1) if rank == 0 else dist.send(receipt, 0)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def named(amount: float, step: int, units: list[str]) -> str:
    """Return a text of an amount, in the largest unit with a value of at least 1."""
    while amount >= step and len(units) > 1:
        amount, units = amount / step, units[1:]
    return f"{amount:.0f} {units[0]}" if amount >= 100 else f"{amount:.3g} {units[0]}"


def print_speeds(rank: int) -> None:
    """Measure between ranks 0 and 1, and print a line for each size."""
    if rank == 0:
        columns = [f"{'size':>8}", f"{'one way':>10}", f"{'rate':>14}"]
        columns += [f"{'batch of':>11}", f"{'messages/s':>13}", f"{'rate':>14}"]
        print("\n" + "".join(columns))
    for size in SIZES:
        count = max(2, min(BATCH, (64 << 20) // size))
        alone, together = one_way_seconds(rank, size), batch_seconds(rank, size, count)
        if rank > 0:
            continue
        per_second = count / together
        rates = [named(r / 1e6, 1000, ["MB/s", "GB/s"]) for r in (size / alone, size * per_second)]
        print(
            f"{named(size, 1024, ['B', 'KiB', 'MiB']):>8}"
            f"{named(alone * 1e6, 1000, ['us', 'ms', 's']):>10}{rates[0]:>14}"
            f"{count:>11}{per_second:>13,.0f}{rates[1]:>14}",
            flush=True,
        )


def print_route(peer: int) -> None:
    """Print the route to `peer`, and the counters of the messages sent."""
    import dlslime_backend

    print(f"\n{dlslime_backend.explain(peer)['text']}")
    counters = dlslime_backend.stats()["peers"][peer]
    print(
        f"Rank {dist.get_rank()} sent rank {peer} {counters['sent_messages']:,} messages, "
        f"{counters['sent_bytes'] / 1e9:.2f} GB: {counters['eager_messages']:,} eager, "
        f"{counters['rendezvous_messages']:,} by rendezvous."
    )


def main() -> None:
    """Check the data, then measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="dlslime")
    backend = parser.parse_args().backend
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    if rank == 0:
        print(f"{backend}, {world} ranks, torch {torch.__version__}\n")
    checks = [check_send_recv, check_batch, check_any_source, check_all_reduce]
    for check in checks:
        check(rank, world)
        dist.barrier()
        if rank == 0:
            print(f"ok: {check.__doc__}", flush=True)

    if rank < 2:
        print_speeds(rank)
    if rank == 0 and backend == "dlslime":
        print_route(peer=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
