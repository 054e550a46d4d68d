"""Ownership of memory: dropped handles, swapped storage, recycled addresses, shared buffers."""

import ctypes
import gc

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect_pattern, pattern

SMALL, LARGE = 64, 2_000_000


def _scribble(nbytes: int) -> list[torch.Tensor]:
    """Allocate the memory just freed, and fill the memory with other bytes."""
    gc.collect()
    return [torch.full((nbytes,), 0xDD, dtype=torch.uint8) for _ in range(8)]


def _swapped_storage(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        data = pattern(nbytes, 1)
        work = dist.isend(data, 1)
        data.data = torch.empty(1, dtype=torch.uint8)
        scribbles = _scribble(nbytes)
        tell("swapped")
        work.wait()
        del scribbles
    else:
        await_key("swapped")
        received = blank(nbytes)
        dist.recv(received, 0)
        expect_pattern(received, 1)


@dlslime_only
@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_send_survives_a_swap_of_the_tensors_storage(env: dict[str, str], nbytes: int) -> None:
    run_world(_swapped_storage, 2, nbytes, env=env)


def _dropped_send(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        for i in range(10):
            dist.isend(pattern(nbytes, i), 1)  # neither tensor nor work is kept
        scribbles = _scribble(nbytes)
        tell("dropped")
        sync("received")
        del scribbles
    else:
        await_key("dropped")
        for i in range(10):
            received = blank(nbytes)
            dist.recv(received, 0)
            expect_pattern(received, i)
        sync("received")


@dlslime_only
@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_send_survives_dropping_tensor_and_work(env: dict[str, str], nbytes: int) -> None:
    run_world(_dropped_send, 2, nbytes, env=env)


def _dropped_receive(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        kept = blank(nbytes)
        dist.irecv(blank(nbytes), 1)  # still takes a message, before the next receive
        work = dist.irecv(kept, 1)
        gc.collect()
        tell("posted")
        last = blank(nbytes)
        dist.recv(last, 1)
        expect_pattern(last, 2)
        work.wait()
        expect_pattern(kept, 1)
    else:
        await_key("posted")
        for i in range(3):
            dist.send(pattern(nbytes, i), 0)


@dlslime_only
@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_receive_whose_handle_is_dropped_still_takes_its_message(
    env: dict[str, str], nbytes: int
) -> None:
    run_world(_dropped_receive, 2, nbytes, env=env)


def _resized_storage(rank: int, size: int) -> None:
    """The storage is replaced under the tensor: torch's way to free activations."""
    if rank == 0:
        data = pattern(LARGE, 1)
        work = dist.isend(data, 1)
        sync("go")
        work.wait()
        data.untyped_storage().resize_(0)
        data.untyped_storage().resize_(LARGE)
        data.copy_(pattern(LARGE, 2))
        dist.send(data, 1)
    else:
        sync("go")
        received = blank(LARGE)
        for seed in (1, 2):
            dist.recv(received, 0)
            expect_pattern(received, seed)
            received.untyped_storage().resize_(0)
            received.untyped_storage().resize_(LARGE)
            received.fill_(0)


@all_routes
def test_storage_freed_and_allocated_again_between_messages(env: dict[str, str]) -> None:
    run_world(_resized_storage, 2, env=env)


def _recycled_addresses(rank: int, size: int) -> None:
    """Temporaries reuse addresses, in sizes that malloc maps and unmaps each time."""
    sizes = [200_000, 1 << 20, 5 << 20]
    for i in range(60):
        nbytes = sizes[i % 3] + i
        if rank == 0:
            dist.send(pattern(nbytes, i), 1)
        else:
            received = blank(nbytes)
            dist.recv(received, 0)
            expect_pattern(received, i)


@all_routes
def test_temporaries_at_recycled_addresses_carry_their_own_bytes(env: dict[str, str]) -> None:
    run_world(_recycled_addresses, 2, env=env)


def _one_buffer_many_sends(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        data = pattern(nbytes, 7)
        works = [dist.isend(data, r, tag=t) for t in range(5) for r in range(1, size)]
        for work in works:
            work.wait()
    else:
        for tag in range(5):
            received = blank(nbytes)
            dist.recv(received, 0, tag=tag)
            expect_pattern(received, 7)


@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_one_buffer_in_many_sends(env: dict[str, str], nbytes: int) -> None:
    run_world(_one_buffer_many_sends, 4, nbytes, env=env)


def _two_receives_one_buffer(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        received = blank(nbytes)
        first = dist.irecv(received, 1)
        second = dist.irecv(received, 1)
        tell("posted")
        first.wait()
        expect_pattern(received, 1)
        tell("seen")
        second.wait()
        expect_pattern(received, 2)
    else:
        await_key("posted")
        dist.send(pattern(nbytes, 1), 0)
        await_key("seen")
        dist.send(pattern(nbytes, 2), 0)


@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_two_receives_into_one_buffer(env: dict[str, str], nbytes: int) -> None:
    run_world(_two_receives_one_buffer, 2, nbytes, env=env)


def _overlapping_slices(rank: int, size: int) -> None:
    """A receive into one half while the other half is sent."""
    other = 1 - rank
    buffer = torch.cat([pattern(LARGE, rank), blank(LARGE)])
    works = [dist.isend(buffer[:LARGE], other), dist.irecv(buffer[LARGE:], other)]
    for work in works:
        work.wait()
    expect_pattern(buffer[:LARGE], rank)
    expect_pattern(buffer[LARGE:], other)


@all_routes
def test_halves_of_one_storage_send_and_receive_at_once(env: dict[str, str]) -> None:
    run_world(_overlapping_slices, 2, env=env)


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory kept by the allocator for later does not count
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def _flat_memory(rank: int, size: int) -> None:
    def exchange(count: int) -> None:
        for i in range(count):
            nbytes = (64, 10_000, 300_000)[i % 3]
            data, received = torch.empty(nbytes), torch.empty(nbytes)
            works = [dist.isend(data, 1 - rank, tag=i), dist.irecv(received, 1 - rank, tag=i)]
            for work in works:
                work.wait()

    exchange(600)
    before = _resident_bytes()
    exchange(1800)
    grown = _resident_bytes() - before
    # 1,800 messages on as many tags: keeping 4 KiB of each would make 7 MiB.
    assert grown < 6 << 20, f"{grown} bytes more after 1,800 messages"


@all_routes
def test_memory_stays_flat_over_thousands_of_messages_and_tags(env: dict[str, str]) -> None:
    run_world(_flat_memory, 2, env=env, fresh=True)
