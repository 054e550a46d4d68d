"""The ranks' work: a function for each part, run by every rank of a job.

Each function returns its samples in seconds on rank 0 (None elsewhere if only rank 0 measures).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from limit import one_way
from measuring.harness import OPERATION_TIMEOUT, Payload, Rank, interleave

clock = time.perf_counter


# --- one message at a time ---------------------------------------------------------------------


def _bounce(
    me: Rank, group: dist.ProcessGroup, out: torch.Tensor, back: torch.Tensor, count: int
) -> list[float]:
    """Make ``count`` round trips; rank 0 gets half of each trip's time."""
    samples = []
    if me.rank == 0:
        for _ in range(count):
            start = clock()
            dist.send(out, 1, group)
            dist.recv(back, 1, group)
            samples.append((clock() - start) / 2)
    else:
        for _ in range(count):
            dist.recv(back, 0, group)
            dist.send(out, 0, group)
    return samples


def _trips(size: int, quick: bool) -> int:
    """Return the round trips in a round: 32 MiB each way, but 3 to 200."""
    return max(3, min(50 if quick else 200, (32 << 20) // size))


def latency(
    me: Rank, size: int, rounds: int, fresh: bool, quick: bool, program: Path | None = None
) -> dict[str, list[float]]:
    """Measure ping-pong of ``size`` bytes, and the limit program, if any, between the rounds.

    ``fresh``: rank 1 sends back the very tensor received, and rank 0 receives into the tensor sent.
    Otherwise sources are never written again.
    """
    payload = Payload(size)
    out = torch.zeros(size, dtype=torch.uint8)
    back = out if fresh else torch.zeros(size, dtype=torch.uint8)
    trips = _trips(size, quick)

    def once(slot: str, number: int) -> list[float]:
        if slot in ("both", "segment", "ring"):
            best = one_way(program, slot, size, trips, fresh, me.cores) if me.rank == 0 else None
            return [best] if best else []
        group = me.groups[slot]
        if me.rank == 0 or not fresh:
            payload.fill(out, number)
        me.barrier()
        _bounce(me, group, out, back, max(1, trips // 10))
        samples = _bounce(me, group, out, back, trips)
        if me.rank == 0:  # once more: the bytes must have gone both ways
            dist.send(out, 1, group)
            back.zero_()
            dist.recv(back, 1, group)
        else:
            _bounce(me, group, out, back, 1)
        payload.check(back, number, f"{slot}, {size} bytes")
        return samples

    limits = [] if program is None else ["ring"] if size <= 4096 else ["both", "segment"]
    return interleave(me, [*me.groups, *limits], rounds, once)


# --- many messages in flight -------------------------------------------------------------------


def _batch(blocks: Sequence[torch.Tensor], send: bool, group: dist.ProcessGroup, peer: int) -> None:
    operation = dist.isend if send else dist.irecv
    works = dist.batch_isend_irecv([dist.P2POp(operation, b, peer, group) for b in blocks])
    for work in works:
        work.wait()


def batches(me: Rank, size: int, count: int, rounds: int, trips: int) -> dict[str, list[float]]:
    """Send ``count`` messages in a batch_isend_irecv to rank 1, and all of them back in another.

    Rank 0's samples are seconds for a batch one way.
    """
    payload = Payload(size * count)
    pool = torch.zeros(size * count, dtype=torch.uint8)
    blocks = pool.view(count, size).unbind(0)

    def once(slot: str, number: int) -> list[float]:
        group = me.groups[slot]
        samples = []
        if me.rank == 0:
            payload.fill(pool, number)
        me.barrier()
        for trip in range(-1, trips + 1):  # the first trip warms up, the last verifies
            start = clock()
            _batch(blocks, me.rank == 0, group, 1 - me.rank)
            if me.rank == 0 and trip == trips:
                pool.zero_()
            _batch(blocks, me.rank == 1, group, 1 - me.rank)
            if 0 <= trip < trips:
                samples.append((clock() - start) / 2)
        payload.check(pool, number, f"{slot}, {count} x {size} bytes in a batch")
        return samples

    return interleave(me, list(me.groups), rounds, once)


def message_rate(
    me: Rank, size: int, count: int, window: int, rounds: int
) -> dict[str, list[float]]:
    """Send ``count`` messages one way by isend/irecv, never more than ``window`` in flight.

    Rank 0's samples are seconds for all messages, up to the receiver's answer.
    """
    payload = Payload(size * count)
    pool = torch.zeros(size * count, dtype=torch.uint8)
    blocks = pool.view(count, size).unbind(0)
    answer = torch.zeros(1)

    def once(slot: str, number: int) -> list[float]:
        group = me.groups[slot]
        if me.rank == 0:
            payload.fill(pool, number)
        me.barrier()
        start = clock()
        for at in range(0, count, window):
            part = blocks[at : at + window]
            if me.rank == 0:
                works = [dist.isend(block, 1, group) for block in part]
            else:
                works = [dist.irecv(block, 0, group) for block in part]
            for work in works:
                work.wait()
        _finish(me, group, answer)
        elapsed = clock() - start
        if me.rank == 1:
            payload.check(pool, number, f"{slot}, {count} messages of {size} bytes")
        return [elapsed]

    return interleave(me, list(me.groups), rounds, once)


def _finish(me: Rank, group: dist.ProcessGroup, answer: torch.Tensor) -> None:
    """Let rank 0 return when rank 1 has received everything."""
    if me.rank == 0:
        dist.recv(answer, 1, group)
    else:
        dist.send(answer, 0, group)


# --- processor time ----------------------------------------------------------------------------


def cpu_per_gb(
    me: Rank, size: int, total: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Stream ``total`` bytes in messages of ``size``, eight in flight.

    Returns:
        For each slot pairs (processor seconds of both ranks, seconds) for 10^9 bytes. The
        processor time is that of all threads, and goes on for 50 ms after the last message, so
        that threads still spinning are counted.
    """
    window, count = 8, total // size
    payload = Payload(size * window)
    pool = torch.zeros(size * window, dtype=torch.uint8)
    blocks = pool.view(window, size).unbind(0)
    answer = torch.zeros(1)
    call = dist.isend if me.rank == 0 else dist.irecv

    def once(slot: str, number: int) -> list[Any]:
        group = me.groups[slot]
        if me.rank == 0:
            payload.fill(pool, number)
        me.barrier()
        cpu, start = time.process_time(), clock()
        for _ in range(count // window):
            for work in [call(block, 1 - me.rank, group) for block in blocks]:
                work.wait()
        _finish(me, group, answer)
        elapsed = clock() - start
        time.sleep(0.05)
        used = sum(me.share(time.process_time() - cpu))
        if me.rank == 1:
            payload.check(pool, number, f"{slot}, stream of {size} bytes")
        gigabytes = count // window * window * size / 1e9
        return [(used / gigabytes, elapsed / gigabytes)]

    return interleave(me, list(me.groups), rounds, once)


def idle(me: Rank, seconds: float) -> tuple[float, float]:
    """Return the rank's processor use, as a share of a core, after init and after traffic."""
    (group,) = me.groups.values()
    gc.collect()
    shares = []
    small, large = torch.zeros(64), torch.zeros(4 << 20)
    for traffic in (False, True):
        if traffic:
            _bounce(me, group, small, small, 100)
            _bounce(me, group, large, large, 3)
        me.barrier()
        cpu = time.process_time()
        time.sleep(seconds)
        shares.append((time.process_time() - cpu) / seconds)
        me.barrier()
    return shares[0], shares[1]


# --- setting up --------------------------------------------------------------------------------


def set_up(
    me: Rank, backends: dict[str, str], worlds: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Make and destroy default groups in processes that have done so before.

    Returns:
        For each (slot, world size) pairs (seconds from the first rank's start of
        init_process_group to the last rank's return, seconds for the first message of 8 bytes from
        rank 0 to rank 1). The first round isn't counted.
    """
    samples: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        for slot, backend in backends.items() if number % 2 else reversed(backends.items()):
            for world in worlds:
                one = _set_up_once(me, f"{slot}/{world}/{number}", backend, world)
                if number > 0:
                    samples.setdefault((slot, world), []).append(one)
    return samples


def _set_up_once(me: Rank, name: str, backend: str, world: int) -> tuple[float, float]:
    taking_part = me.rank < world
    store = dist.PrefixStore(name, me.store)
    me.barrier()
    start = end = sent = got = time.monotonic()  # a common clock for all processes of a host
    if taking_part:
        dist.init_process_group(
            backend, store=store, rank=me.rank, world_size=world, timeout=OPERATION_TIMEOUT
        )
        end = time.monotonic()
    me.barrier()
    if me.rank < 2:
        message = torch.zeros(1, dtype=torch.int64)
        sent = time.monotonic()
        if me.rank == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
        got = time.monotonic()
    times = me.share((start, end, sent, got))[:world]
    if taking_part:
        dist.destroy_process_group()
    last_end = max(t[1] for t in times)
    return last_end - min(t[0] for t in times), times[1][3] - max(t[2] for t in times[:2])


def explain(me: Rank) -> dict[str, Any]:
    """Return the way of messages to the peer, by dlslime's own account."""
    import dlslime_backend

    found = dlslime_backend.explain(1 - me.rank, me.groups["ours"])
    return {key: found[key] for key in ("route", "copy", "text")}
