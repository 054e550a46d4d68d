"""Memory that can't be accessed (any more): read-only, in a file cut short, or protected.

An access raises a signal, so no thread of dlslime may access such memory. The process that asked
for the bytes gets an error with the memory's owner and the reason; the other process does not even
notice.
"""

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import all_routes, await_key, context, dlslime_only, run_world, sync, tell
from mapped_pages import PAGE, UNREADABLE, UNWRITABLE, Pages, expect_fault, faulting, read_only
from patterns import expect_pattern, pattern
from test_one_sided import swap

pytestmark = dlslime_only

NBYTES = 256 * PAGE
FAILED = dist.DistBackendError


class Pair:
    """Registered pages of the rank, filled with its pattern, and a handle of the peer's pages."""

    def __init__(self, nbytes: int = NBYTES, key: str = "pages", other: int | None = None) -> None:
        rank = context().job.rank
        other = 1 - rank if other is None else other
        self.pages = Pages(nbytes)
        self.memory = self.pages.memory
        self.memory.copy_(pattern(nbytes, rank))
        self.peer = dlslime_backend.peer(other)
        self.region = dlslime_backend.register(self.memory, name=f"{key} of {rank}")
        self.remote = dlslime_backend.import_region(swap(key, self.region.export(), other))

    def begin(self, write: bool, pieces: Any = None) -> dlslime_backend.Transfer:
        begin = self.peer.write if write else self.peer.read
        return begin(self.region, self.remote, pieces)


def _owner(rank: int, size: int, write: bool, kind: str) -> None:
    """Rank 0 transfers bytes of memory registered at rank 1 that can't be accessed."""
    pair, spare = Pair(), Pair(key="spare")
    for at_end in (False, True):
        pair.memory.copy_(pattern(NBYTES, rank))
        if rank == 1:
            with faulting(pair.pages, kind, at_end):
                sync(f"faulting, {at_end}")
                sync(f"tried, {at_end}")
            pair.memory.copy_(pattern(NBYTES, 1))
        else:
            sync(f"faulting, {at_end}")
            for pieces in (None, [(0, NBYTES - 8, 8)]):
                with pytest.raises(FAILED) as caught:
                    pair.begin(write, pieces).wait()
                expect_fault(str(caught.value), f"of pid {pair.remote.pid}", write, kind)
                assert "local" not in str(caught.value).split(" failed: ", 1)[1]
            spare.begin(False).wait()
            expect_pattern(spare.memory, 1, "the pair works on")
            sync(f"tried, {at_end}")
        sync(f"repaired, {at_end}")
        if rank == 0:
            pair.memory.copy_(pattern(NBYTES, 7))
            pair.begin(write).wait()
            expect_pattern(pair.memory, 7 if write else 1)
        sync(f"again, {at_end}")
        if rank == 1:
            expect_pattern(pair.memory, 7 if write else 1, "memory that can be touched again")


@all_routes
@pytest.mark.parametrize(
    ("write", "kind"),
    [(True, kind) for kind in UNWRITABLE] + [(False, kind) for kind in UNREADABLE],
)
def test_owner_of_faulting_memory_lives_and_the_other_end_is_told(
    env: dict[str, str], write: bool, kind: str
) -> None:
    run_world(_owner, 2, write, kind, env=env)


def _own(rank: int, size: int, write: bool, kind: str) -> None:
    """Rank 0 reads into, or writes from, memory of its own that can't be accessed."""
    pair, spare = Pair(), Pair(key="spare")
    for at_end in (False, True) if rank == 0 else ():
        with faulting(pair.pages, kind, at_end):
            for pieces in (None, [(NBYTES - 8, 0, 8)]):
                with pytest.raises(FAILED) as caught:
                    pair.begin(write, pieces).wait()
                # A write reads from the memory.
                expect_fault(str(caught.value), 'local region "pages of 0"', not write, kind)
        spare.begin(False).wait()
        expect_pattern(spare.memory, 1, "the pair works on")
        pair.memory.copy_(pattern(NBYTES, 7))
        pair.begin(write).wait()
        expect_pattern(pair.memory, 7 if write else 1, "memory that can be touched again")
    sync("tried")
    if rank == 1:
        expect_pattern(pair.memory, 7 if write else 1)


@all_routes
@pytest.mark.parametrize(
    ("write", "kind"),
    [(False, kind) for kind in UNWRITABLE] + [(True, kind) for kind in UNREADABLE],
)
def test_ones_own_faulting_memory_is_named_as_such(
    env: dict[str, str], write: bool, kind: str
) -> None:
    run_world(_own, 2, write, kind, env=env)


def _one_of_many_pieces(rank: int, size: int, write: bool) -> None:
    pair = Pair()
    pieces = [(at, at, 10) for at in range(0, NBYTES, 100)]
    if rank == 1:
        with faulting(pair.pages, "out_of_reach", at_end=True):
            sync("faulting")
            sync("tried")
        return
    sync("faulting")
    with pytest.raises(FAILED) as caught:
        pair.begin(write, pieces).wait()
    expect_fault(str(caught.value), f"of pid {pair.remote.pid}", write, "out_of_reach")
    pair.begin(write, pieces[: len(pieces) // 2]).wait()
    sync("tried")


@all_routes
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_one_piece_that_faults_fails_its_transfer_alone(env: dict[str, str], write: bool) -> None:
    run_world(_one_of_many_pieces, 2, write, env=env)


def _no_number(rank: int, size: int) -> None:
    """The number of a failed write does not come; the number of the next write does."""
    pair, spare = Pair(), Pair(key="spare")
    if rank == 1:
        expected = pair.peer.expect_imm()
        with faulting(pair.pages, "read_only"):
            sync("faulting")
            assert expected.wait() == 2
        expect_pattern(spare.memory, 0)
        return
    sync("faulting")
    with pytest.raises(FAILED):
        pair.peer.write_with_imm(pair.region, pair.remote, imm=1).wait()
    spare.peer.write_with_imm(spare.region, spare.remote, imm=2).wait()


@all_routes
def test_number_of_a_write_that_failed_does_not_come(env: dict[str, str]) -> None:
    run_world(_no_number, 2, env=env)


def _cut_under_reads(rank: int, size: int) -> None:
    """A file is cut under reads: a read fails, and until then all bytes are right."""
    pair = Pair()
    if rank == 1:
        await_key("reading")
        pair.pages.cut(PAGE)
        sync("failed")
        return
    pair.begin(False).wait()
    tell("reading")
    with pytest.raises(FAILED) as caught:  # noqa: PT012  how many succeed is open
        while True:
            pair.begin(False).wait()
            expect_pattern(pair.memory, 1)
    expect_fault(str(caught.value), f"of pid {pair.remote.pid}", False, "cut")
    pair.begin(False, [(0, 0, PAGE)]).wait()
    sync("failed")


@all_routes
def test_file_that_is_cut_under_reads(env: dict[str, str]) -> None:
    run_world(_cut_under_reads, 2, env=env)


def _within_a_process(rank: int, size: int, write: bool, side: str, pieces: Any) -> None:
    """A rank reads from itself, and writes to itself; a side can't be accessed."""
    pair, other = Pair(other=0), Pages(NBYTES)
    local = dlslime_backend.register(other.memory, name="the other")
    begin = pair.peer.write if write else pair.peer.read
    where, whose = pair.pages, 'region "pages of 0"'
    if side == "local":
        where, whose = other, 'local region "the other"'
    written = write != (side == "local")
    for kind in UNWRITABLE if written else UNREADABLE:
        with faulting(where, kind, at_end=True), pytest.raises(FAILED) as caught:
            begin(local, pair.remote, pieces).wait()
        expect_fault(str(caught.value), whose, written, kind)
        where.memory.copy_(pattern(NBYTES, 4))
        begin(local, pair.remote, pieces).wait()
        for at, _, length in pieces or [(0, 0, NBYTES)]:
            assert other.memory[at : at + length].equal(pair.memory[at : at + length])


SMALL = [(at, at, 64) for at in range(0, NBYTES, 1024)]


@pytest.mark.parametrize("side", ["local", "remote"])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("pieces", [None, SMALL], ids=["whole", "small pieces"])
def test_transfers_within_a_process_between_faulting_memory(
    write: bool, side: str, pieces: list[tuple[int, int, int]] | None
) -> None:
    run_world(_within_a_process, 1, write, side, pieces)


# Regions that peers may only read.


def _lent_for_reading(rank: int, size: int, really: bool) -> None:
    """Rank 1 lends its memory for reading only, perhaps read-only for itself, too (`really`)."""
    pages = Pages(NBYTES)
    pages.memory.copy_(pattern(NBYTES, rank))
    access = {"access": "read"} if rank == 1 else {}
    region = dlslime_backend.register(pages.memory, name=f"weights of {rank}", **access)
    remote = dlslime_backend.import_region(swap("weights", region.export(), 1 - rank))
    peer = dlslime_backend.peer(1 - rank)
    with read_only(pages.memory) if really and rank == 1 else contextlib.nullcontext():
        sync("registered")
        if rank == 0:
            text = '(?s)"weights of 1" of pid .* registered for reading'
            for call in (
                lambda: peer.write(region, remote),
                lambda: peer.write(region, remote, [(0, 0, 1)]),
                lambda: peer.prepare_write(region, remote),
                lambda: peer.write_many([(region, remote, None)]),
                lambda: peer.write_with_imm(region, remote, imm=1),
            ):
                with pytest.raises(ValueError, match=text):
                    call()
            peer.read(region, remote).wait()
            expect_pattern(pages.memory, 1)
            peer.prepare_read(region, remote, [(0, 9, 100)]).start().wait()
        else:
            for call in (
                lambda: peer.read(region, remote),
                lambda: peer.prepare_read(region, remote, [(0, 0, 1)]),
                lambda: peer.read_many([(region, remote, None)]),
            ):
                with pytest.raises(ValueError, match='local region "weights of 1" .*for reading'):
                    call()
            await_key("read")
            peer.write(region, remote).wait()  # the owner may write from the region
        if rank == 0:
            tell("read")
        sync("over")
    expect_pattern(pages.memory, 1)
    region.deregister()


@all_routes
@pytest.mark.parametrize("really", [False, True], ids=["writable", "read_only"])
def test_region_for_reading_is_read_and_never_written(env: dict[str, str], really: bool) -> None:
    run_world(_lent_for_reading, 2, really, env=env)


def _unknown_access(rank: int, size: int) -> None:
    for access in ("", "w", "execute", 3):
        with pytest.raises((ValueError, TypeError), match="dlslime.*access"):
            dlslime_backend.register(torch.zeros(3), access=access)


def test_unknown_access_is_refused() -> None:
    run_world(_unknown_access, 1)
