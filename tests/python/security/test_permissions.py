"""Processes that lose the permission to access each other's memory after connecting.

No process is told of the loss: the next system call is refused. From then on the pair streams
through shared memory, and repeats the operations that were under way.
"""

import ctypes
import os
import platform
import struct

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import dlslime_only, init_group, run_world, stopped, sync
from patterns import blank, expect_pattern, pattern
from test_endpoint import met
from test_one_sided import Side, Triples, side_of
from test_threads import run_threads

pytestmark = dlslime_only

LARGE = 5 << 20  # sent by rendezvous, and copied in pieces by both ends
PAIR = 2

# System calls that copy memory or descriptors between processes, and seccomp, by the kernel's
# numbers for the processor.
_CALLS = {
    "x86_64": {"readv": 310, "writev": 311, "getfd": 438, "seccomp": 317},
    "aarch64": {"readv": 270, "writev": 271, "getfd": 438, "seccomp": 277},
}[platform.machine()]
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG = 4, 38, 1
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(*arguments: int) -> None:
    numbers = [ctypes.c_ulong(number) for number in (*arguments, 0, 0, 0)[:5]]
    assert _libc.prctl(*numbers) == 0, os.strerror(ctypes.get_errno())


def refuse(*calls: str, error: int = 1) -> None:
    """Make the kernel refuse the calls ("readv", "writev", "getfd") to all threads of the process.

    The default error is EPERM, as for a process without access to another. A seccomp filter needs
    no privilege and holds for ever, so the process is of no use to other tests.
    """
    program = struct.pack("HBBI", _LOAD, 0, 0, 0)  # the call's number
    for call in calls:
        program += struct.pack("HBBI", _JUMP_IF_EQUAL, 0, 1, _CALLS[call])
        program += struct.pack("HBBI", _RETURN, 0, 0, _REFUSED | error)
    program += struct.pack("HBBI", _RETURN, 0, 0, _ALLOWED)
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    mode, all_threads = 1, 1
    done = _libc.syscall(_CALLS["seccomp"], mode, all_threads, filter_)
    assert done == 0, os.strerror(ctypes.get_errno())


def _become_unprivileged() -> None:
    """Change from root, with access to every process, to a user with access to its own ones."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)  # of all threads; removes dumpability and the death signal
        _prctl(_PR_SET_DUMPABLE, 1)
        _prctl(_PR_SET_PDEATHSIG, 9)


def _expect_copies(rank: int, way: str) -> None:
    told = dlslime_backend.explain(1 - rank)
    assert (told["route"], told["copy"]) == ("shm", way)


def _everything_arrives(rank: int, key: str, nbytes: int = LARGE) -> None:
    """Send, read and write in both directions; check that each byte comes and no call fails."""
    other = 1 - rank
    received = [blank(nbytes) for _ in range(3)]
    works = [dist.irecv(tensor, other, tag=i) for i, tensor in enumerate(received)]
    works += [dist.isend(pattern(nbytes, 10 * rank + i), other, tag=i) for i in range(3)]
    for work in works:
        work.wait()
    for i, tensor in enumerate(received):
        expect_pattern(tensor, 10 * other + i, f"{key}: message {i}")
    mine, theirs = side_of(rank, nbytes, f"{key} read"), side_of(rank, nbytes, f"{key} written")
    sync(f"{key}: registered")
    half = nbytes // 2
    if rank == 0:
        mine.read().wait()
        expect_pattern(mine.memory, 1, f"{key}: read")
        theirs.write([(0, 0, half), (half + 5, half + 5, half - 5)]).wait()
    sync(f"{key}: by rank 0")
    if rank == 1:
        expected = pattern(nbytes, 0)
        expected[half : half + 5] = pattern(nbytes, 1)[half : half + 5]
        assert theirs.memory.equal(expected), f"{key}: written"
        mine.memory.zero_()
        theirs.memory.zero_()
        mine.write().wait()
        theirs.read().wait()
        expect_pattern(theirs.memory, 0, f"{key}: read back")
    sync(f"{key}: by rank 1")
    if rank == 0:
        assert not mine.memory.any(), f"{key}: written back"
    sync(f"{key}: over")


LOST = {
    "one end, to read": ([0], ["readv"]),
    "one end, to write": ([0], ["writev"]),
    "one end, both": ([1], ["readv", "writev"]),
    "both ends, to read": ([0, 1], ["readv"]),
    "both ends, to write": ([0, 1], ["writev"]),
    "both ends, both": ([0, 1], ["readv", "writev"]),
}


def _lost(rank: int, size: int, case: str) -> None:
    _everything_arrives(rank, "before")
    _expect_copies(rank, "cma")
    losers, calls = LOST[case]
    if rank in losers:
        refuse(*calls)
    sync("lost")
    _everything_arrives(rank, "after")
    _everything_arrives(rank, "later")
    if len(losers) == size and "readv" in calls:
        _expect_copies(rank, "staged")


@pytest.mark.parametrize("case", LOST)
def test_everything_arrives_after_a_permission_was_lost(case: str) -> None:
    run_world(_lost, PAIR, case, fresh=True)


def _lost_by_privilege(rank: int, size: int, losers: list[int]) -> None:
    _become_unprivileged()
    init_group()
    _everything_arrives(rank, "before")
    _expect_copies(rank, "cma")
    if rank in losers:
        _prctl(_PR_SET_DUMPABLE, 0)
    sync("lost")
    _everything_arrives(rank, "after")
    if len(losers) == size:
        _expect_copies(rank, "staged")


@pytest.mark.parametrize("losers", [[0], [1], [0, 1]], ids=["rank_0", "rank_1", "both"])
def test_everything_arrives_after_processes_became_undumpable(losers: list[int]) -> None:
    run_world(_lost_by_privilege, PAIR, losers, fresh=True, init=False)


def _became_another_user(rank: int, size: int) -> None:
    """Rank 1 gives up its privileges, as servers do after opening files."""
    _everything_arrives(rank, "before")
    if rank == 1:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        _prctl(_PR_SET_PDEATHSIG, 9)
    sync("lost")
    _everything_arrives(rank, "after")


# Only root can become another user.
if os.geteuid() == 0:

    def test_everything_arrives_after_a_process_became_another_user() -> None:
        run_world(_became_another_user, PAIR, fresh=True)


@pytest.mark.parametrize("error", [13, 38], ids=["EACCES", "ENOSYS"])
def test_other_refusals_of_the_kernel_are_no_end_either(error: int) -> None:
    run_world(_lost_with, PAIR, error, fresh=True)


def _lost_with(rank: int, size: int, error: int) -> None:
    _everything_arrives(rank, "before")
    refuse("readv", "writev", error=error)
    sync("lost")
    _everything_arrives(rank, "after")


def _lost_while_posted(rank: int, size: int, receives_first: bool) -> None:
    """Twenty messages and reads are under way when rank 0 loses the permission."""
    count, other = 20, 1 - rank
    side = side_of(rank, LARGE)
    if rank == 0:
        side.read([(0, 0, 8)]).wait()
        side.memory.copy_(pattern(LARGE, rank))
    sync("read")
    received = [blank(LARGE) for _ in range(count)]
    if rank == 0 and receives_first:
        works = [dist.irecv(tensor, other, tag=i) for i, tensor in enumerate(received)]
        sync("posted")
        refuse("readv", "writev")
    elif rank == 0:
        sync("posted")
        with stopped(1):  # rank 1 can't answer meanwhile
            works = [dist.irecv(tensor, other, tag=i) for i, tensor in enumerate(received)]
            read = side.read()
            refuse("readv", "writev")
        read.wait()
        expect_pattern(side.memory, 1, "read")
    else:
        sync("posted")
        works = [dist.isend(pattern(LARGE, i), other, tag=i) for i in range(count)]
    for work in works:
        work.wait()
    if rank == 0:
        for i, tensor in enumerate(received):
            expect_pattern(tensor, i, f"message {i}")


@pytest.mark.parametrize("receives_first", [False, True])
def test_what_is_under_way_when_a_permission_is_lost_arrives(receives_first: bool) -> None:
    run_world(_lost_while_posted, PAIR, receives_first, fresh=True)


def _lost_during_reads(rank: int, size: int) -> None:
    """A thread reads again and again; another thread takes the permission away meanwhile."""
    side = side_of(rank, LARGE)
    if rank == 1:
        return
    side.read().wait()

    def read() -> None:
        for i in range(30):
            side.memory.fill_(0xEE)
            side.read().wait()
            expect_pattern(side.memory, 1, f"read {i}")

    run_threads([read, lambda: refuse("readv", "writev")])


def test_reads_go_on_while_the_permission_is_lost() -> None:
    run_world(_lost_during_reads, PAIR, fresh=True)


def _mixed(ours: int, theirs: int, pieces: Triples) -> torch.Tensor:
    """Return a pattern of seed `ours`, with pieces of the pattern of seed `theirs`."""
    mixed, source = pattern(LARGE, ours), pattern(LARGE, theirs)
    for to, at, length in pieces:
        mixed[to : to + length] = source[at : at + length]
    return mixed


def _many_pieces(rank: int, size: int) -> None:
    """A transfer of many pieces goes on after a refused call that had begun with some pieces."""
    side = side_of(rank, LARGE)
    pieces = [(at, at, 700) for at in range(0, LARGE - 1000, 1000)]
    sync("registered")
    if rank == 0:
        side.read([(0, 0, 8)]).wait()
        side.memory.copy_(pattern(LARGE, rank))
        reading = side.peer.prepare_read(side.region, side.remote, pieces)
        refuse("readv", "writev")
        reading.start().wait()
        assert side.memory.equal(_mixed(0, 1, pieces))
        side.memory.copy_(pattern(LARGE, 5))
        side.peer.write_with_imm(side.region, side.remote, pieces, imm=7).wait()
    else:
        assert side.peer.expect_imm().wait() == 7
        assert side.memory.equal(_mixed(1, 5, pieces))


def test_pieces_arrive_once_and_their_number_after_them() -> None:
    run_world(_many_pieces, PAIR, fresh=True)


def _endpoints(rank: int, size: int) -> None:
    endpoint = met(rank)
    side = Side(endpoint, 1 - rank, LARGE)
    if rank == 0:
        side.read([(0, 0, 8)]).wait()
        refuse("readv", "writev")
        side.read().wait()
        expect_pattern(side.memory, 1)
    sync("read")
    received = blank(LARGE)
    transfers = [endpoint.send(pattern(LARGE, rank)), endpoint.recv(received)]
    for transfer in transfers:
        transfer.wait()
    expect_pattern(received, 1 - rank)


def test_endpoints_go_on_after_a_permission_was_lost() -> None:
    run_world(_endpoints, PAIR, fresh=True, init=False)


def _lost_before(rank: int, size: int, losers: list[int]) -> None:
    """Ranks that connect after the loss find out by trying."""
    if rank in losers:
        refuse("readv", "writev")
    sync("lost")
    _everything_arrives(rank, "after")
    group = dist.new_group()
    tensor = pattern(LARGE, rank)
    dist.broadcast(tensor, 0, group=group)
    expect_pattern(tensor, 0)


@pytest.mark.parametrize("losers", [[0], [1], [0, 1]], ids=["rank_0", "rank_1", "both"])
def test_ranks_that_connect_without_permission_reach_each_other(losers: list[int]) -> None:
    run_world(_lost_before, PAIR, losers, fresh=True)


def _one_of_three(rank: int, size: int) -> None:
    """Rank 0 loses the permission: the pair of the other ranks keeps its way of copying."""
    for other in {0, 1, 2} - {rank}:
        dlslime_backend.explain(other)
    sync("connected")
    if rank == 0:
        refuse("readv", "writev")
    sync("lost")
    received = {other: blank(LARGE) for other in {0, 1, 2} - {rank}}
    works = [dist.irecv(tensor, other) for other, tensor in received.items()]
    works += [dist.isend(pattern(LARGE, rank), other) for other in received]
    for work in works:
        work.wait()
    for other, tensor in received.items():
        expect_pattern(tensor, other, f"from {other}")
    if rank > 0:
        assert dlslime_backend.explain(3 - rank)["copy"] == "cma"


def test_pairs_of_others_keep_their_way() -> None:
    run_world(_one_of_three, 3, fresh=True)


def _said_once(rank: int, size: int) -> None:
    dlslime_backend.explain(1 - rank)
    sync("connected")
    refuse("readv", "writev")
    sync("lost")
    for i in range(5):
        _everything_arrives(rank, f"round {i}")


def test_the_loss_is_logged_once_per_peer() -> None:
    told = run_world(_said_once, PAIR, env={"DLSLIME_LOG": "info"}, fresh=True, with_output=True)
    for _, output in told:
        assert output.count("streamed through shared memory") == 1, output
