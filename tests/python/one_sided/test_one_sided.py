"""One-sided transfers in a process group: placement of bytes, and notes to the owner."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dlslime_backend
from harness import all_routes, await_key, context, dlslime_only, run_world, sync, tell
from patterns import blank, expect, expect_pattern, pattern
from polling import eventually
from test_threads import run_threads

pytestmark = dlslime_only

NBYTES = 60_000
PAGE = 1000
LARGEST = 2**32 - 1  # of immediates
Triples = list[tuple[int, int, int]]


def swap(key: str, mine: bytes, other: int) -> bytes:
    """Exchange bytes with rank `other` under `key`; return the bytes of `other`."""
    rank = context().job.rank
    tell(f"{key}: {rank} to {other}", mine.hex())
    return bytes.fromhex(await_key(f"{key}: {other} to {rank}"))


class Side:
    """A rank's part of a pair: memory, a pattern of the rank, and a handle of the peer's memory."""

    def __init__(
        self,
        peer: dlslime_backend.Peer,
        other: int,
        nbytes: int = NBYTES,
        key: str = "memory",
    ) -> None:
        rank = context().job.rank
        self.peer = peer
        self.memory = pattern(nbytes, rank)
        self.region = dlslime_backend.register(self.memory, name=f"{key} of {rank}")
        self.remote = dlslime_backend.import_region(swap(key, self.region.export(), other))

    def read(self, pieces: Any = None) -> dlslime_backend.Transfer:
        return self.peer.read(self.region, self.remote, pieces)

    def write(self, pieces: Any = None) -> dlslime_backend.Transfer:
        return self.peer.write(self.region, self.remote, pieces)


def side_of(rank: int, nbytes: int = NBYTES, key: str = "memory", other: int | None = None) -> Side:
    """Make a Side with the other rank of the group, or with `other`."""
    other = 1 - rank if other is None else other
    return Side(dlslime_backend.peer(other), other, nbytes, key)


def _expect_moved(side: Side, rank: int, write: bool, triples: Triples) -> None:
    """Check that rank 0 has read or written `triples`, and that no other byte has changed."""
    expected = pattern(len(side.memory), rank)
    if rank == int(write):
        source = pattern(len(side.memory), 1 - rank)
        for local, remote, size in triples:
            to, at = (remote, local) if write else (local, remote)
            expected[to : to + size] = source[at : at + size]
    expect(side.memory, expected, "write" if write else "read")


def _as(form: str, triples: Triples) -> Any:
    table = np.array(triples, dtype=np.int64).reshape(-1, 3)
    columns = [np.ascontiguousarray(table[:, i]) for i in range(3)]
    forms: dict[str, Callable[[], Any]] = {
        "list": lambda: triples,
        "lists": lambda: [list(entry) for entry in triples],
        "numpy": lambda: tuple(columns),
        "torch": lambda: tuple(torch.from_numpy(column) for column in columns),
        "pages": lambda: (columns[0] // PAGE, torch.from_numpy(columns[1] // PAGE), PAGE),
        "none": lambda: None,
    }
    return forms[form]()


SCATTERED = [(0, 5, 3), (100, 70, 1), (4000, 50_000, 5000), (NBYTES - 1, 0, 1), (90, 4000, 10)]
NEIGHBOURS = [(0, 10, 5), (5, 15, 5), (10, 20, 7), (17, 40, 3), (50, 43, 3), (20, 46, 4)]
PAGES = [(p * PAGE, q * PAGE, PAGE) for p, q in [(3, 0), (0, 7), (5, 9), (6, 10), (59, 59)]]
ZERO_BYTES = [(0, 0, 0), (NBYTES, NBYTES, 0), (9, 2, 4), (9, 2, 0), (3, NBYTES, 0)]
WHOLE = [(0, 0, NBYTES)]
GIVEN = {
    "list": ("list", SCATTERED),
    "list of lists": ("lists", SCATTERED),
    "numpy arrays": ("numpy", SCATTERED),
    "torch arrays": ("torch", SCATTERED),
    "pages": ("pages", PAGES),
    "whole regions": ("none", WHOLE),
    "neighbours": ("numpy", NEIGHBOURS),
    "zero bytes": ("list", ZERO_BYTES),
    "empty list": ("list", []),
    "empty arrays": ("numpy", []),
}


def _moves(rank: int, size: int, write: bool, given: str) -> None:
    side, (form, triples) = side_of(rank), GIVEN[given]
    if rank == 0:
        transfer = (side.write if write else side.read)(_as(form, triples))
        transfer.wait()
        assert transfer.done()
        assert transfer.nbytes == sum(entry[2] for entry in triples)
    sync("moved")
    _expect_moved(side, rank, write, triples)


@all_routes
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_pieces_arrive_and_nothing_else_changes(
    env: dict[str, str], write: bool, given: str
) -> None:
    run_world(_moves, 2, write, given, env=env)


def _many_pieces(rank: int, size: int, write: bool, count: int) -> None:
    side, shuffled = side_of(rank, count * 100), np.random.default_rng(7).permutation
    columns = [shuffled(count) * 100, shuffled(count) * 100, np.full(count, 70)]
    if rank == 0:
        (side.write if write else side.read)(tuple(columns)).wait()
    sync("moved")
    _expect_moved(side, rank, write, list(zip(*(c.tolist() for c in columns))))


@all_routes
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_twenty_thousand_scattered_pieces_arrive(env: dict[str, str], write: bool) -> None:
    run_world(_many_pieces, 2, write, 20_000, env=env)


def _random_pieces(random: np.random.Generator, sizes: tuple[int, int]) -> Triples:
    """Draw pieces (to, from, size), with separate targets in the first of two regions."""
    cuts = np.sort(random.integers(0, sizes[0] + 1, size=2 * random.integers(0, 60)))
    pieces = []
    for i in random.permutation(len(cuts) // 2):
        begin, end = int(cuts[2 * i]), int(cuts[2 * i + 1])
        length = min(end - begin, sizes[1])
        pieces.append((begin, int(random.integers(0, sizes[1] - length + 1)), length))
    return pieces


def _random_transfers(rank: int, size: int, seed: int) -> None:
    """Both ranks follow rank 0's transfers in a model, and finally compare memory and model."""
    random, sizes = np.random.default_rng(seed), [10_000, 1, 300_000]
    sides = [side_of(rank, nbytes, f"region {nbytes}") for nbytes in sizes]
    model = [[pattern(nbytes, r).numpy() for nbytes in sizes] for r in range(2)]
    for _ in range(30):
        write, parts = bool(random.integers(2)), list[tuple[int, int, Triples]]()
        into, out_of = model[int(write)], model[1 - int(write)]
        for ours in random.permutation(3):
            theirs = int(random.integers(3))
            a, b = (theirs, int(ours)) if write else (int(ours), theirs)
            if any(a == part[0] for part in parts):
                continue  # two parts into one region may overlap
            parts.append((a, b, _random_pieces(random, (sizes[a], sizes[b]))))
        for a, b, pieces in parts:
            for to, at, length in pieces:
                into[a][to : to + length] = out_of[b][at : at + length]
        if rank == 0:
            begin = sides[0].peer.write_many if write else sides[0].peer.read_many
            begin(
                (sides[b].region, sides[a].remote, [(at, to, n) for to, at, n in pieces])
                if write
                else (sides[a].region, sides[b].remote, pieces)
                for a, b, pieces in parts
            ).wait()
    sync("moved")
    for side, expected in zip(sides, model[rank]):
        expect(side.memory, torch.from_numpy(expected), f"seed {seed}")


@all_routes
@pytest.mark.parametrize("seed", range(4))
def test_random_transfers_between_several_regions_agree_with_a_model(
    env: dict[str, str], seed: int
) -> None:
    run_world(_random_transfers, 2, seed, env=env)


def _raw_memory(rank: int, size: int) -> None:
    """A matrix of bfloat16 at rank 0, memory given by its address at rank 1."""
    memory = pattern(24, rank)
    region = (
        dlslime_backend.register(memory.view(torch.bfloat16).reshape(3, 4))
        if rank == 0
        else dlslime_backend.register((memory.data_ptr(), memory.numel()), name="raw")
    )
    remote = dlslime_backend.import_region(swap("memory", region.export(), 1 - rank))
    assert (region.nbytes, remote.nbytes) == (24, 24)
    assert (region.address, remote.name) == (memory.data_ptr(), "raw" if rank == 0 else "")
    if rank == 0:
        dlslime_backend.peer(1).read(region, remote).wait()
        expect_pattern(memory, 1)
    sync("read")


@all_routes
def test_regions_of_any_shape_and_of_plain_addresses(env: dict[str, str]) -> None:
    run_world(_raw_memory, 2, env=env)


def _oneself(rank: int, size: int) -> None:
    source, target = pattern(NBYTES, 5), blank(NBYTES)
    remote = dlslime_backend.import_region(dlslime_backend.register(source).export())
    dlslime_backend.peer(rank).read(dlslime_backend.register(target), remote).wait()
    expect_pattern(target, 5)


def test_rank_reads_its_own_region() -> None:
    run_world(_oneself, 1)


def _immediates_in_order(rank: int, size: int, rounds: int, nbytes: int) -> None:
    """Write i fills slot i of the memory, with i or one of the largest numbers as immediate."""
    side = side_of(rank, rounds * nbytes)
    numbers = [LARGEST, *range(rounds - 2), LARGEST - 1]
    for slot, number in enumerate(numbers):
        part = slice(slot * nbytes, (slot + 1) * nbytes)
        if rank == 0:
            pieces = [(part.start, part.start, nbytes)]
            side.peer.write_with_imm(side.region, side.remote, pieces, imm=number).wait()
        else:
            assert side.peer.expect_imm().wait() == number
            expect(side.memory[part], pattern(rounds * nbytes, 0)[part], f"slot {slot}")


@all_routes
@pytest.mark.parametrize("nbytes", [16, 300_000])
def test_immediates_come_in_order_and_after_the_data(env: dict[str, str], nbytes: int) -> None:
    run_world(_immediates_in_order, 2, 20, nbytes, env=env)


def _immediates_at_once(rank: int, size: int, count: int, nbytes: int) -> None:
    side = side_of(rank, count * nbytes)
    if rank == 0:
        pieces = [[(i * nbytes, i * nbytes, nbytes)] for i in range(count)]
        begin = side.peer.write_with_imm
        writes = [begin(side.region, side.remote, pieces[i], imm=i) for i in range(count)]
        for write in writes:
            write.wait()
        return
    numbers, written = [], pattern(count * nbytes, 0)
    for expected in [side.peer.expect_imm() for _ in range(count)]:
        numbers.append(i := expected.wait())
        part = slice(i * nbytes, (i + 1) * nbytes)
        expect(side.memory[part], written[part], f"slot {i}")
    assert sorted(numbers) == list(range(count))


@all_routes
@pytest.mark.parametrize("nbytes", [16, 300_000])
def test_immediates_of_writes_at_once_come_after_their_data(
    env: dict[str, str], nbytes: int
) -> None:
    run_world(_immediates_at_once, 2, 30, nbytes, env=env)


def _early_immediates(rank: int, size: int) -> None:
    side = side_of(rank)
    if rank == 0:
        side.peer.write_with_imm(side.region, side.remote, imm=0).wait()
        side.peer.write_with_imm(side.region, side.remote, [], imm=LARGEST).wait()
    sync("written")
    if rank == 1:
        assert side.peer.expect_imm().wait() == 0
        expect_pattern(side.memory, 0)
        assert side.peer.expect_imm().wait() == LARGEST
        with pytest.raises(TimeoutError):
            side.peer.expect_imm().wait(0.02)
    sync("late")
    if rank == 0:
        side.peer.write_with_imm(side.region, side.remote, [], imm=3).wait()
    else:
        assert side.peer.expect_imm().wait() == 3  # the late expectation has not taken the number


@all_routes
def test_early_immediates_are_kept_and_late_expectations_take_none(env: dict[str, str]) -> None:
    run_world(_early_immediates, 2, env=env)


def _tags(rank: int, size: int, nbytes: int) -> None:
    peer, last = dlslime_backend.peer(1 - rank), 2**31 - 1
    received = {tag: blank(nbytes + 8) for tag in (last, 1, 0)}
    sends = [peer.send(pattern(nbytes, rank + tag % 5), tag) for tag in (0, 1, last)]
    for tag, tensor in received.items():
        receive = peer.recv(tensor, tag)
        receive.wait()
        assert receive.nbytes == nbytes
        expect_pattern(tensor[:nbytes], 1 - rank + tag % 5)
        expect(tensor[nbytes:], blank(8), "what is beyond the message")
    for send in sends:
        send.wait()


@all_routes
@pytest.mark.parametrize("nbytes", [0, 8, 3 << 20])
def test_send_and_recv_match_by_tag_and_tell_what_came(env: dict[str, str], nbytes: int) -> None:
    run_world(_tags, 2, nbytes, env=env)


def _threads(rank: int, size: int, threads: int, rounds: int) -> None:
    """Each thread reads slots of its own through a common Peer."""
    side = side_of(rank, threads * rounds * 100)
    if rank == 1:
        return

    def read(thread: int) -> None:
        for i in range(rounds):
            offset = (i * threads + thread) * 100
            side.read([(offset, offset, 100)]).wait()
            expected = pattern(len(side.memory), 1)[offset : offset + 100]
            expect(side.memory[offset : offset + 100], expected, f"thread {thread} round {i}")

    run_threads([functools.partial(read, t) for t in range(threads)])
    expect_pattern(side.memory, 1)


@all_routes
def test_threads_read_at_once_through_one_peer(env: dict[str, str]) -> None:
    run_world(_threads, 2, 6, 50, env=env)


def _other_threads_wait(rank: int, size: int) -> None:
    side = side_of(rank, 3 << 20)
    if rank == 0:
        transfer = side.read()
        run_threads([transfer.wait] * 4)
        expect_pattern(side.memory, 1)
        transfer.wait()


@all_routes
def test_four_threads_wait_for_a_read_that_another_began(env: dict[str, str]) -> None:
    run_world(_other_threads_wait, 2, env=env)


def _polled(rank: int, size: int, nbytes: int) -> None:
    side = side_of(rank, nbytes)
    if rank == 0:
        transfer = side.write()
        eventually(transfer.done)
    sync("written")
    expect_pattern(side.memory, 0)


@all_routes
@pytest.mark.parametrize("nbytes", [100, 3 << 20])
def test_write_that_is_only_polled_ends(env: dict[str, str], nbytes: int) -> None:
    run_world(_polled, 2, nbytes, env=env)


def _prepared(rank: int, size: int) -> None:
    side = side_of(rank)
    pieces = [(0, 3 * PAGE, PAGE), (5 * PAGE, 0, 7)]
    sync("ready")
    if rank == 0:
        reading = side.peer.prepare_read(side.region, side.remote, pieces)
        _expect_moved(side, rank, False, [])  # no transfer has begun
        for _ in range(3):
            reading.start().wait()
            _expect_moved(side, rank, False, pieces)
            side.memory.copy_(pattern(NBYTES, rank))
        for transfer in [reading.start() for _ in range(20)]:
            transfer.wait()
        _expect_moved(side, rank, False, pieces)
        with pytest.raises(ValueError, match="memory of 1"):
            side.peer.prepare_read(side.region, side.remote, [(0, NBYTES, 1)])
        side.memory.copy_(pattern(NBYTES, rank))
        side.peer.prepare_write(side.region, side.remote, pieces).start().wait()
        side.region.deregister()
        with pytest.raises(ValueError, match="deregistered"):
            reading.start().wait()
    sync("written")
    if rank == 1:
        _expect_moved(side, rank, True, pieces)
    sync("over")


@all_routes
def test_prepared_transfers_can_be_started_many_times(env: dict[str, str]) -> None:
    run_world(_prepared, 2, env=env)
