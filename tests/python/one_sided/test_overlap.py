"""Transfers and messages with a source and a destination that share memory.

Shifting blocks inside a cache is an example. Either the result is as if all sources had been read
before any write, or the call is refused and no byte has moved.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from mapped_pages import PAGE, Pages
from patterns import blank, expect, pattern
from test_one_sided import Triples, swap

pytestmark = dlslime_only

LARGE = 64 << 20
SIZES = [40_000, 3 << 20]
# Distances by which bytes move up, or down.
SHIFTS = [1, 100, PAGE, 70_000, 600_000, -1, -100, -PAGE, -70_000, -600_000]


def _moved(before: torch.Tensor, triples: Triples) -> torch.Tensor:
    """Return the result of reading all sources of (to, from, size), and then writing."""
    after = before.clone()
    for to, at, size in triples:
        after[to : to + size] = before[at : at + size]
    return after


def _shift(nbytes: int, by: int) -> Triples:
    size = nbytes - abs(by)
    return [(by, 0, size)] if by > 0 else [(0, -by, size)]


def right_or_refused(
    memory: torch.Tensor, triples: Triples, begin: Callable[[Triples], Any], what: object
) -> bool:
    """Tell whether a transfer was done; fail if neither right nor refused by ValueError."""
    before = memory.clone()
    try:
        begin(triples).wait()
    except ValueError as error:
        assert "overlap" in str(error)  # noqa: PT017  a refusal is allowed
        expect(memory, before, f"{what}, refused")
        return False
    expect(memory, _moved(before, triples), what)
    return True


def _begins(
    peer: dlslime_backend.Peer, write: bool, regions: list[Any], remotes: list[Any]
) -> Callable[[Triples], Any]:
    def begin(triples: Triples) -> Any:
        if write:
            pieces = [(at, to, size) for to, at, size in triples]
            return peer.write(regions[0], remotes[-1], pieces)
        return peer.read(regions[0], remotes[-1], triples)

    return begin


def _shifted(rank: int, size: int, nbytes: int, write: bool, twice: bool) -> None:
    """Move bytes within a memory registered once or twice."""
    memory = pattern(nbytes)
    regions = [dlslime_backend.register(memory, f"region {i}") for i in range(1 + twice)]
    remotes = [dlslime_backend.import_region(region.export()) for region in regions]
    begin = _begins(dlslime_backend.peer(rank), write, regions, remotes)
    for by in SHIFTS:
        if abs(by) < nbytes:
            right_or_refused(memory, _shift(nbytes, by), begin, f"by {by} bytes")


@pytest.mark.parametrize("twice", [False, True], ids=["one_region", "two_regions"])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_memory_is_shifted_within_itself(nbytes: int, write: bool, twice: bool) -> None:
    run_world(_shifted, 1, nbytes, write, twice)


def _shifted_cache(rank: int, size: int) -> None:
    """Insert a block at the front of a cache of 64 MiB, and take the block out again."""
    memory = pattern(LARGE)
    region = dlslime_backend.register(memory, "cache")
    remote = dlslime_backend.import_region(region.export())
    begin = _begins(dlslime_backend.peer(rank), False, [region], [remote])
    for by in (1 << 20, -(1 << 20)):
        right_or_refused(memory, _shift(LARGE, by), begin, f"by {by} bytes")


def test_a_large_cache_is_shifted() -> None:
    run_world(_shifted_cache, 1)


BLOCK = 10_000
MOVES: dict[str, Triples] = {
    "blocks up": [((i + 1) * BLOCK, i * BLOCK, BLOCK - 10) for i in range(20)],
    "blocks down": [(i * BLOCK, (i + 1) * BLOCK, BLOCK - 10) for i in range(20)],
    "two blocks swapped": [(0, BLOCK, BLOCK), (BLOCK, 0, BLOCK)],
    "a ring of three": [(0, BLOCK, 9), (BLOCK, 2 * BLOCK, 9), (2 * BLOCK, 0, 9)],
    "one into the next": [(BLOCK, 0, 100), (2 * BLOCK, BLOCK + 50, 100)],
    "many small": [(8 * i + 8, 8 * i, 4) for i in range(20_000)],
    "large ones": [(1 << 20, 0, 1 << 20), (2 << 20, (1 << 20) + 5, 1 << 20)],
}


def _several(rank: int, size: int, case: str) -> None:
    """Each piece is apart from its own source, but overlaps the source of another piece."""
    triples, memory = MOVES[case], blank(4 << 20)
    region = dlslime_backend.register(memory, "blocks")
    remote = dlslime_backend.import_region(region.export())
    peer = dlslime_backend.peer(rank)

    def begin(form: str, write: bool, moves: Triples) -> Any:
        pieces = [(at, to, size) if write else (to, at, size) for to, at, size in moves]
        if form == "parts":
            many = peer.write_many if write else peer.read_many
            return many([(region, remote, [piece]) for piece in pieces])
        if form == "prepared":
            prepare = peer.prepare_write if write else peer.prepare_read
            return prepare(region, remote, pieces).start()
        columns = np.array(pieces, dtype=np.int64).T
        arrays = tuple(np.ascontiguousarray(column) for column in columns)
        return (peer.write if write else peer.read)(region, remote, arrays)

    for form, write in itertools.product(["arrays", "parts", "prepared"], [False, True]):
        memory.copy_(pattern(4 << 20))
        moves = triples[:100] if form == "parts" else triples
        what = f"{case}, {form}, {'write' if write else 'read'}"
        right_or_refused(memory, moves, functools.partial(begin, form, write), what)


@pytest.mark.parametrize("case", MOVES)
def test_pieces_that_lie_where_others_come_from(case: str) -> None:
    run_world(_several, 1, case)


def _apart(rank: int, size: int) -> None:
    """Blocks of one memory that are apart, also in turns, must not be refused."""
    memory = pattern(4 << 20)
    region = dlslime_backend.register(memory, "cache")
    remote = dlslime_backend.import_region(region.export())
    begin = _begins(dlslime_backend.peer(rank), False, [region], [remote])
    for triples in (
        [(2 << 20, 0, 2 << 20)],
        [((2 * i + 1) * BLOCK, 2 * i * BLOCK, BLOCK) for i in range(100)],
        [(i * BLOCK, (399 - i) * BLOCK, BLOCK) for i in range(200)],
        [(5, 5, 1 << 20)],  # onto itself
    ):
        assert right_or_refused(memory, triples, begin, "apart")


def test_blocks_of_one_memory_that_are_apart_are_copied() -> None:
    run_world(_apart, 1)


def _message(rank: int, size: int, nbytes: int, sent_first: bool) -> None:
    """A rank sends itself bytes, and receives into memory that begins amid the sent bytes."""
    for by in SHIFTS:
        if abs(by) >= nbytes:
            continue
        memory = pattern(nbytes + abs(by))
        expected = memory.clone()
        source, target = memory[max(-by, 0) :][:nbytes], memory[max(by, 0) :][:nbytes]
        expected[max(by, 0) :][:nbytes] = memory[max(-by, 0) :][:nbytes]
        before = memory.clone()
        try:
            if sent_first:
                works = [dist.isend(source, rank), dist.irecv(target, rank)]
            else:
                works = [dist.irecv(target, rank), dist.isend(source, rank)]
            for work in works:
                work.wait()
        except ValueError as error:
            assert "overlap" in str(error)  # noqa: PT017
            expect(memory, before, "refused")
            continue
        expect(memory, expected, f"by {by} bytes")


@pytest.mark.parametrize("sent_first", [False, True])
@pytest.mark.parametrize("nbytes", SIZES)
def test_message_to_oneself_into_the_memory_that_is_sent(nbytes: int, sent_first: bool) -> None:
    run_world(_message, 1, nbytes, sent_first)


def _endpoints_of_one_process(rank: int, size: int) -> None:
    memory = pattern(3 << 20)
    one, other = dlslime_backend.Endpoint("one"), dlslime_backend.Endpoint("other")
    one.connect(other.address)
    other.connect(one.address)
    region = dlslime_backend.register(memory, "shared by both")
    remote = dlslime_backend.import_region(region.export())
    begin = _begins(one, False, [region], [remote])
    for by in SHIFTS:
        right_or_refused(memory, _shift(len(memory), by), begin, f"by {by} bytes")
    one.close()
    other.close()


def test_endpoints_of_one_process_shift_its_memory() -> None:
    run_world(_endpoints_of_one_process, 1, init=False)


def _mapped_twice(rank: int, size: int, write: bool) -> None:
    """A file is mapped at two addresses of a process, with the same pages behind both."""
    nbytes = 3 << 20
    pages = Pages(nbytes)
    again = pages.mapped_again()
    assert again.data_ptr() != pages.memory.data_ptr()
    region = dlslime_backend.register(pages.memory, "here")
    remote = dlslime_backend.import_region(dlslime_backend.register(again, "there").export())
    begin = _begins(dlslime_backend.peer(rank), write, [region], [remote])
    for by in SHIFTS:
        pages.memory.copy_(pattern(nbytes))
        right_or_refused(pages.memory, _shift(nbytes, by), begin, f"by {by} bytes")
    pages.memory.copy_(pattern(nbytes))
    assert right_or_refused(pages.memory, [(2 << 20, 0, 1 << 20)], begin, "apart")


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_file_that_is_mapped_twice_is_shifted(write: bool) -> None:
    run_world(_mapped_twice, 1, write)


def _two_processes(rank: int, size: int, write: bool) -> None:
    """Both ranks have mapped a file; rank 1's part of the file begins a page later."""
    nbytes = 8 << 20
    if rank == 0:
        pages = Pages(nbytes)
        tell("file", pages.path)
    else:
        pages = Pages(nbytes, await_key("file"))
    part = pages.memory[rank * PAGE :]
    region = dlslime_backend.register(part, name=f"pages of {rank}")
    remote = dlslime_backend.import_region(swap("pages", region.export(), 1 - rank))
    peer = dlslime_backend.peer(1 - rank)

    def begin(triples: Triples) -> Any:
        # Pieces are offsets in the part registered by a rank, not offsets in the file.
        if write:
            pieces = [(at, to - PAGE, size) for to, at, size in triples]
            return peer.write(region, remote, pieces)
        return peer.read(region, remote, [(to, at - PAGE, size) for to, at, size in triples])

    for by in SHIFTS if rank == 0 else ():
        pages.memory.copy_(pattern(nbytes))
        lead, length = 2 * PAGE + 700_000, nbytes - 4 * PAGE - 1_400_000
        right_or_refused(pages.memory, [(lead + by, lead, length)], begin, f"by {by} bytes")
    if rank == 0:
        pages.memory.copy_(pattern(nbytes))
        apart = [(5 << 20, 1 << 20, 2 << 20), (PAGE, 4 << 20, 100)]
        assert right_or_refused(pages.memory, apart, begin, "apart")
        ring = [(PAGE, 4 << 20, 100), (4 << 20, PAGE, 100)]
        right_or_refused(pages.memory, ring, begin, "swapped")
    sync("over")


@all_routes
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_pages_that_two_processes_map_are_shifted(env: dict[str, str], write: bool) -> None:
    run_world(_two_processes, 2, write, env=env)


def _message_within_shared_pages(rank: int, size: int, nbytes: int) -> None:
    """Rank 0 sends bytes that rank 1 receives a page further on, in memory mapped by both."""
    if rank == 0:
        pages = Pages(nbytes + PAGE)
        tell("file", pages.path)
    else:
        pages = Pages(nbytes + PAGE, await_key("file"))
    if rank == 0:
        pages.memory.copy_(pattern(nbytes + PAGE))
    sync("filled")
    expected = pages.memory.clone()
    expected[PAGE:] = pages.memory[:nbytes]
    sync("expected")
    if rank == 0:
        dist.send(pages.memory[:nbytes], 1)
    else:
        dist.recv(pages.memory[PAGE:], 0)
    sync("received")
    expect(pages.memory, expected)


@all_routes
@pytest.mark.parametrize("nbytes", [60_000])
def test_eager_message_within_pages_that_both_map(env: dict[str, str], nbytes: int) -> None:
    run_world(_message_within_shared_pages, 2, nbytes, env=env)
