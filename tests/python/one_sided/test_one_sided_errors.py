"""One-sided transfers that go wrong: bad input, memory taken back, peers that die."""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import (
    all_routes,
    await_death,
    await_key,
    context,
    dlslime_only,
    run_world,
    send_signal,
    stopped,
    sync,
    tell,
)
from patterns import blank, expect, expect_pattern, pattern
from test_one_sided import LARGEST, NBYTES, PAGE, Side, side_of, swap

pytestmark = dlslime_only

LARGE = 64 << 20


def _ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


LOCAL, REMOTE = "outside of the local region", "outside of the remote region"
KINDS = "arrays of int64 or int32"
BAD: dict[str, tuple[Callable[[Side], object], str]] = {
    "read beyond local": (lambda s: s.read([(0, 0, 9), (NBYTES - 1, 0, 2)]), f"piece 1.* {LOCAL}"),
    "write beyond local": (lambda s: s.write([(NBYTES + 1, 0, 0)]), LOCAL),
    "read beyond remote": (lambda s: s.read([(0, NBYTES - 1, 2)]), REMOTE),
    "write beyond remote": (lambda s: s.write((_ints(0), _ints(NBYTES), _ints(1))), REMOTE),
    "negative local": (lambda s: s.read([(-1, 0, 1)]), LOCAL),
    "negative remote": (lambda s: s.write([(0, -1, 1)]), REMOTE),
    "negative length": (lambda s: s.read([(5, 5, -1)]), "outside of"),
    "sum that wraps": (lambda s: s.read([(2**63 - 1, 0, 2**63 - 1)]), "outside of"),
    "page beyond": (lambda s: s.read((_ints(0), _ints(60), PAGE)), REMOTE),
    "negative page": (lambda s: s.read((_ints(-1), _ints(0), PAGE)), LOCAL),
    "page that wraps": (lambda s: s.read((_ints(2**60), _ints(0), 16)), LOCAL),
    "page of no bytes": (lambda s: s.read((_ints(0), _ints(0), 0)), "a page of 0 bytes"),
    "targets of a read overlap": (
        lambda s: s.read([(0, 0, 9), (8, 99, 9)]),
        "overlap in the local",
    ),
    "targets of a write": (lambda s: s.write([(0, 50, 9), (20, 43, 8)]), "overlap in the remote"),
    "a page twice": (lambda s: s.write((_ints(0, 1, 2), _ints(4, 1, 4), PAGE)), "overlap"),
    "two parts overlap": (
        lambda s: s.peer.read_many(
            [(s.region, s.remote, [(0, 0, 9)]), (s.region, s.remote, [(8, 99, 9)])]
        ),
        "overlap",
    ),
    "arrays of lengths": (lambda s: s.read((_ints(0, 9), _ints(0), _ints(1))), "one length"),
    "pages of lengths": (lambda s: s.read((_ints(0), _ints(0, 1), PAGE)), "one length"),
    "numpy int16": (lambda s: s.read((_ints(0), _ints(0).astype(np.int16), _ints(1))), KINDS),
    "floats": (lambda s: s.read((torch.zeros(1), _ints(0), _ints(1))), KINDS),
    "matrix": (lambda s: s.read((_ints(0).reshape(1, 1), _ints(0), _ints(1))), KINDS),
    "two arrays": (lambda s: s.read((_ints(0), _ints(0))), "a batch of arrays is"),
    "piece of two": (lambda s: s.read([(0, 0)]), "a piece is"),
    "piece of no numbers": (lambda s: s.read([("a", "b", "c")]), "is an integer"),
    "a piece, not a list": (lambda s: s.read((0, 0, 8)), "pieces go in a list"),
    "piece of fractions": (lambda s: s.read([(0.5, 0, 1)]), "is an integer"),
    "number of 64 bits": (lambda s: s.read([(2**63, 0, 1)]), "an integer of 64 bits"),
    "number in the list": (lambda s: s.read([0, 0, 8]), "a piece is"),
    "whole of other size": (
        lambda s: s.peer.read(dlslime_backend.register(blank(8)), s.remote),
        "8",
    ),
    "immediate below 0": (
        lambda s: s.peer.write_with_imm(s.region, s.remote, imm=-1),
        "immediate -1 is not in",
    ),
    "immediate of 33 bits": (
        lambda s: s.peer.write_with_imm(s.region, s.remote, imm=LARGEST + 1),
        "immediate 4294967296 is not in",
    ),
    "negative tag": (lambda s: s.peer.send(blank(1), -1), "tag -1 is not in"),
    "tag of 32 bits": (lambda s: s.peer.recv(blank(1), 2**31), "tag 2147483648 is not in"),
    "send non-contiguous": (lambda s: s.peer.send(blank(8)[::2]), "non-contiguous"),
    "register non-contiguous": (lambda s: dlslime_backend.register(blank(8)[::2]), "contiguous"),
    "register nowhere": (lambda s: dlslime_backend.register((0, 8)), "address 0"),
    "import garbage": (lambda s: dlslime_backend.import_region(b"garbage" * 9), "not of dlslime"),
    "import nothing": (lambda s: dlslime_backend.import_region(b""), "not of dlslime"),
    "import a part": (
        lambda s: dlslime_backend.import_region(s.region.export()[:-1]),
        "handle of a region",
    ),
    "rank beyond": (lambda s: dlslime_backend.peer(2), "2"),
    "negative rank": (lambda s: dlslime_backend.peer(-1), "-1"),
}


def _bad_input(rank: int, size: int, case: str) -> None:
    side, (call, text) = side_of(rank), BAD[case]
    if rank == 0:
        with pytest.raises((ValueError, TypeError), match=f"(?s)dlslime.*{text}"):
            call(side)
        expect_pattern(side.memory, 0)
        side.read().wait()  # no refusal has broken the pair
        expect_pattern(side.memory, 1)
    sync("refused")
    expect_pattern(side.memory, 1)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_at_the_call(case: str) -> None:
    run_world(_bad_input, 2, case)


def _no_group(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="no process group"):
        dlslime_backend.peer(0)
    dist.init_process_group("gloo", store=context().store, rank=0, world_size=1)
    with pytest.raises(ValueError, match="does not use the dlslime backend"):
        dlslime_backend.peer(0)


def test_peer_without_a_group_of_dlslime_is_refused() -> None:
    run_world(_no_group, 1, init=False)


def _deregistered(rank: int, size: int, used_before: bool) -> None:
    side, spare = side_of(rank), side_of(rank, key="spare")
    if rank == 0:
        spare.read().wait()  # connected
        if used_before:
            side.read().wait()
    sync("read")
    if rank == 1:
        for _ in range(3):
            side.region.deregister()
        side.memory.fill_(0)
    sync("taken back")
    if rank == 0:
        side.memory.copy_(pattern(NBYTES, 3))
        for transfer in [side.read(), side.write(), side.read([(0, 0, 1)])]:
            with pytest.raises(ValueError, match=r'"memory of 1" of pid \d+ .* deregistered'):
                transfer.wait()
        expect_pattern(side.memory, 3)
        spare.memory.copy_(pattern(NBYTES, 4))
        spare.write().wait()  # other regions work as before
    sync("written")
    expect(side.memory, torch.zeros_like(side.memory) if rank else pattern(NBYTES, 3))
    expect_pattern(spare.memory, 4)
    if rank == 0:
        side.region.deregister()
        with pytest.raises(ValueError, match='local region "memory of 0" .* deregistered'):
            spare.peer.read(side.region, spare.remote).wait()


@all_routes
@pytest.mark.parametrize("used_before", [False, True])
def test_transfers_with_a_deregistered_region_fail(env: dict[str, str], used_before: bool) -> None:
    run_world(_deregistered, 2, used_before, env=env)


def _registered_again(rank: int, size: int) -> None:
    side = side_of(rank)
    for i in range(5):
        if rank == 1:
            side.region.deregister()
            side.memory.copy_(pattern(NBYTES, 10 + i))
            side.region = dlslime_backend.register(side.memory)
        side.remote = dlslime_backend.import_region(swap(f"{i}", side.region.export(), 1 - rank))
        if rank == 0:
            side.read().wait()
            expect_pattern(side.memory, 10 + i)
        sync(f"read {i}")


@all_routes
def test_memory_registered_again_is_read_by_its_new_handle(env: dict[str, str]) -> None:
    run_world(_registered_again, 2, env=env)


def _taken_from_readers(rank: int, size: int) -> None:
    """Rank 1 takes its memory back under reads, and changes the memory: no read sees the change."""
    side = side_of(rank, LARGE)
    if rank == 1:
        await_key("reading")
        side.region.deregister()
        side.memory.fill_(0)
        return
    for i in range(2000):
        transfer = side.read()
        if i == 1:
            tell("reading")
        try:
            transfer.wait()
        except ValueError as error:
            assert "deregistered" in str(error)  # noqa: PT017  how many succeed is open
            break
        expect_pattern(side.memory, 1, f"read {i}")
    else:
        raise AssertionError("reads went on after the region was gone")


@all_routes
def test_deregister_waits_for_the_reads_of_a_peer(env: dict[str, str]) -> None:
    run_world(_taken_from_readers, 2, env=env)


def _in_flight(rank: int, size: int) -> None:
    side, spare = side_of(rank), side_of(rank, key="spare")
    if rank == 1:
        await_key("over")
        return
    spare.read().wait()
    with stopped(1):
        transfer = side.read()
        with pytest.raises(ValueError, match='"memory of 0" .*1 transfers of this process use it'):
            side.region.deregister()
        assert not transfer.done()
    transfer.wait()
    expect_pattern(side.memory, 1)
    side.region.deregister()
    tell("over")


@all_routes
def test_deregister_is_refused_while_a_transfer_of_ones_own_goes_on(env: dict[str, str]) -> None:
    run_world(_in_flight, 2, env=env, fresh=True)


def _borrower_stopped(rank: int, size: int) -> None:
    """A stopped borrower can't give a region back."""
    side = side_of(rank)
    if rank == 0:
        side.read().wait()
    sync("read")
    if rank == 0:
        await_key("over")
        return
    with stopped(0), pytest.raises(TimeoutError, match="memory of 1.* not given"):
        side.region.deregister(timeout=0.05)
    side.region.deregister()
    tell("over")


@all_routes
def test_deregister_times_out_while_a_peer_does_not_let_go(env: dict[str, str]) -> None:
    run_world(_borrower_stopped, 2, env=env, fresh=True)


def _handle_of_another(rank: int, size: int) -> None:
    """Rank 2 gives its handle to rank 0, which takes the handle for rank 1's."""
    pid = str(os.getpid()).encode()
    if rank == 1:
        swap("pid", pid, 0)
        return
    side = side_of(rank, other=2 - rank)
    if rank == 0:
        pids = f"(?s)of pid {side.remote.pid} on .*the peer is pid {swap('pid', pid, 1).decode()} "
        with pytest.raises(ValueError, match=pids):
            dlslime_backend.peer(1).read(side.region, side.remote).wait()
        with pytest.raises(ValueError, match=pids):
            dlslime_backend.peer(1).write(side.region, side.remote).wait()
        expect_pattern(side.memory, 0)
        side.read().wait()
        expect_pattern(side.memory, 2)


@all_routes
def test_handle_of_another_rank_is_refused_and_both_pids_are_named(env: dict[str, str]) -> None:
    run_world(_handle_of_another, 3, env=env)


def _killed(rank: int, size: int, write: bool) -> None:
    """Rank 0 has many transfers with rank 1, and kills rank 1; rank 2 goes on."""
    if rank > 0:
        sides = [side_of(rank, LARGE, other=0)]
        sides += [side_of(rank, LARGE, "new", other=0)] if rank == 1 else []
        await_key("over")
        return
    victim, new = side_of(0, LARGE, other=1), side_of(0, LARGE, "new", other=1)
    other = side_of(0, LARGE, other=2)
    begin = victim.write if write else victim.read
    begin([(0, 0, 8)]).wait()
    transfers = [begin() for _ in range(30)]
    # A stopped process can't answer for a region never used before.
    send_signal(1, signal.SIGSTOP)
    under_way = new.write() if write else new.read()
    send_signal(1, signal.SIGKILL)
    await_death(1)
    late = begin()
    for transfer in transfers:
        with contextlib.suppress(dist.DistBackendError):  # the transfer was faster
            transfer.wait()
    for transfer in [under_way, late, begin(), victim.peer.expect_imm()]:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            transfer.wait()
        assert transfer.done()
    victim.region.deregister()
    victim.memory.fill_(0)
    other.read().wait()
    expect_pattern(other.memory, 2)
    expect(victim.memory, torch.zeros_like(victim.memory), "after the end of all reads")
    tell("over")


@all_routes
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_transfers_with_a_killed_peer_fail_and_others_go_on(
    env: dict[str, str], write: bool
) -> None:
    run_world(_killed, 3, write, env=env, may_die=[1])


def _late(rank: int, size: int) -> None:
    side, spare = side_of(rank), side_of(rank, key="spare")
    if rank == 1:
        await_key("over")
        side.peer.send(pattern(8)).wait()
        return
    spare.read().wait()
    received = blank(8)
    with stopped(1):
        transfer = side.read()
        with pytest.raises(TimeoutError, match="read from rank 1"):
            transfer.wait(0.05)
        assert transfer.done()
        with pytest.raises(TimeoutError):
            side.peer.recv(received).wait(0.05)
    spare.read().wait()  # the peer has answered all earlier questions
    expect_pattern(side.memory, 0)
    tell("over")
    second = blank(8)
    side.peer.recv(second).wait()
    expect(received, blank(8), "receive that was late")
    expect_pattern(second, 0)
    side.read().wait()  # the pair works as before
    expect_pattern(side.memory, 1)


@all_routes
def test_late_read_and_receive_raise_and_touch_no_memory(env: dict[str, str]) -> None:
    run_world(_late, 2, env=env, fresh=True)


def _cancelled(rank: int, size: int) -> None:
    side = side_of(rank, LARGE)
    spare = side_of(rank, key="spare")
    if rank == 1:
        return
    for _ in range(10):
        transfers = [side.read() for _ in range(3)]
        for transfer in transfers:
            transfer.cancel()
        for transfer in transfers:
            with contextlib.suppress(dist.DistBackendError):
                transfer.wait()
        side.memory.fill_(0xEE)
        spare.read().wait()
        expect(side.memory, blank(LARGE), "after the end of all reads")


@all_routes
def test_cancelled_reads_end_and_touch_no_memory_then(env: dict[str, str]) -> None:
    run_world(_cancelled, 2, env=env)
