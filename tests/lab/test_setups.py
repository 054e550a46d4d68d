"""Broken set-ups of RDMA: what the ranks of two hosts say first, and what the doctor says.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.distributed as dist

import dlslime_backend
from dlslime_backend.cli.doctor import of_this_machine
from dlslime_backend.cli.host import Host
from harness import init_group, run_world, sync
from patterns import blank, expect_pattern, pattern
from setups import expect_problem

PAIR = 2
NODES = Path("/dev/infiniband")
LITTLE = 64 << 10  # bytes that may be pinned: less than one ring
REMEDY = "ulimit -l unlimited"
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 16384, 1 << 18
_PR_SET_DUMPABLE = 4
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def _limit_pinned_memory() -> None:
    """Let the process, without root's exemption, pin 64 KiB."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LITTLE, LITTLE))
    _become_nobody()


def _cover_devices() -> list[os.stat_result]:
    """Give the process an empty /dev/infiniband; return what was there of each device."""
    nodes = [path.stat() for path in sorted(NODES.glob("uverbs*"))]
    calls = [
        _libc.unshare(_CLONE_NEWNS),
        _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None),
        _libc.mount(b"none", str(NODES).encode(), b"tmpfs", 0, None),
    ]
    assert not any(calls), os.strerror(ctypes.get_errno())
    return nodes


def _hide_devices() -> None:
    """Show the process no devices, like a container without them."""
    _cover_devices()


def _close_devices() -> None:
    """Let only root open the devices, and the process be another user's."""
    for number, node in enumerate(_cover_devices()):
        os.mknod(NODES / f"uverbs{number}", stat.S_IFCHR | 0o600, node.st_rdev)
    _become_nobody()


# --- jobs -----------------------------------------------------------------------------------------


class Lack(NamedTuple):
    """What a node lacks for RDMA, and what is said about it."""

    spoil: Callable[[], None] | None
    env: dict[str, str]
    cause: str
    remedy: str


LACKS = {
    "memlock": Lack(_limit_pinned_memory, {}, "the limit on locked memory is 64 KiB", REMEDY),
    "no device": Lack(
        _hide_devices,
        {},
        "the kernel shows {} but /dev/infiniband/uverbs0 can't be opened (errno 2 ",
        "; give the container the device: docker run --device=/dev/infiniband",
    ),
    "closed device": Lack(
        _close_devices,
        {},
        "the kernel shows {} but /dev/infiniband/uverbs0 can't be opened (errno 13 ",
        "; let this user read and write the node",
    ),
    "GID index": Lack(
        None,
        {"DLSLIME_GID_INDEX": "200"},
        "{}:1 has no usable GID at index 200, the table has 0: ",
        "; unset DLSLIME_GID_INDEX and NCCL_IB_GID_INDEX to take the best, or set one of these",
    ),
}


def _exchange(rank: int) -> None:
    received = blank(300_000)
    works = [dist.isend(pattern(300_000, rank), 1 - rank), dist.irecv(received, 1 - rank)]
    for work in works:
        work.wait()
    expect_pattern(received, 1 - rank)


def _spoil(rank: int, what: str, poor: list[int]) -> None:
    spoil = LACKS[what].spoil
    if rank in poor and spoil is not None:
        spoil()


def _env(what: str, poor: list[int], **usual: str) -> list[dict[str, str]]:
    return [{**usual, **(LACKS[what].env if rank in poor else {})} for rank in range(PAIR)]


def _expect_lack(text: str, what: str) -> None:
    assert LACKS[what].cause.format(_device()) in text, text
    assert LACKS[what].remedy in text, text


def _by_tcp(rank: int, size: int, what: str, poor: list[int]) -> str:
    _spoil(rank, what, poor)
    init_group()
    _exchange(rank)
    told = dlslime_backend.explain(1 - rank)
    assert told["route"] == "tcp", told
    sync("through")
    return str(told["text"])


@pytest.mark.parametrize("poor", [[0], [1], [0, 1]], ids=["node_0", "node_1", "both"])
@pytest.mark.parametrize("what", LACKS)
def test_job_over_tcp_warns_of_what_rdma_lacks(what: str, poor: list[int]) -> None:
    env = _env(what, poor, DLSLIME_FALLBACK="warn")  # the default, changed by run_tests
    told = run_world(_by_tcp, PAIR, what, poor, env=env, init=False, fresh=True, with_output=True)
    for text, _ in told:  # of explain()
        _expect_lack(text, what)
    said = [output for _, output in told if "go over TCP, the slowest route" in output]
    assert len(said) == 1, "the end that connects says it once"
    _expect_lack(said[0], what)


def _forbidden(rank: int, size: int, what: str, poor: list[int]) -> str:
    _spoil(rank, what, poor)
    init_group()
    with pytest.raises(dist.DistBackendError) as failure:
        _exchange(rank)
    sync("failed")
    return str(failure.value)


@pytest.mark.parametrize("poor", [0, 1])
@pytest.mark.parametrize("what", LACKS)
def test_job_that_forbids_tcp_names_what_rdma_lacks_at_both_ends(what: str, poor: int) -> None:
    env = _env(what, [poor])
    for text in run_world(_forbidden, PAIR, what, [poor], env=env, init=False, fresh=True):
        assert "falling back to TCP is forbidden" in text, text
        _expect_lack(text, what)


# --- reading of a process's memory ----------------------------------------------------------------


def _set_scope(rank: int, size: int, scope: str) -> None:
    """Set whose memory a process of this node may read without CAP_SYS_PTRACE."""
    _SCOPE.write_text(scope)


@pytest.fixture
def ptrace_scope(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _SCOPE.read_text()
    run_world(_set_scope, PAIR, request.param, init=False, fresh=True)
    yield request.param
    run_world(_set_scope, PAIR, before, init=False, fresh=True)


def _become_ordinary() -> None:
    """Become another user, in the state of a program that this user has started."""
    _become_nobody()
    assert _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) == 0


def _on_one_node(rank: int, size: int) -> str:
    _become_ordinary()
    init_group()
    mate = rank ^ 1
    received = blank(4 << 20)
    works = [dist.isend(pattern(4 << 20, rank), mate), dist.irecv(received, mate)]
    for work in works:
        work.wait()
    expect_pattern(received, mate)
    told = dlslime_backend.explain(mate)
    assert told["route"] == "shm", told
    return str(told["text"])


# Under scope 1, Ubuntu's, ranks of one launcher permit each other.
@pytest.mark.parametrize(("ptrace_scope", "read"), [("0", True), ("1", True), ("2", False)],
                         indirect=["ptrace_scope"])  # fmt: skip
def test_ranks_of_a_launcher_read_each_other_unless_scope_forbids(
    ptrace_scope: str, read: bool
) -> None:
    told = run_world(_on_one_node, 2 * PAIR, init=False, fresh=True, with_output=True)
    for text, _ in told:
        assert ("large messages go by cma" in text) is read, text
    warnings = [output for _, output in told if "kernel.yama.ptrace_scope is" in output]
    assert bool(warnings) is not read, told
    for output in warnings:
        assert f"kernel.yama.ptrace_scope is {ptrace_scope}" in output, output
        assert "To get the faster way, set sysctl kernel.yama.ptrace_scope=0" in output, output


@pytest.mark.parametrize("ptrace_scope", ["2"], indirect=True)
def test_doctor_names_the_scope_that_forbids(ptrace_scope: str) -> None:
    found = _findings(_become_ordinary)
    expect_problem(found["ptrace_scope"], "is 2", "sysctl kernel.yama.ptrace_scope=0")
    assert "ptrace_scope" not in _findings(), "root may read"


@pytest.mark.parametrize("ptrace_scope", ["1"], indirect=True)
def test_doctor_notes_the_scope_that_parts_launchers(ptrace_scope: str) -> None:
    finding = _findings(_become_ordinary)["ptrace_scope"]
    assert finding["level"] == "note", finding
    assert "of one launcher" in finding["text"], finding


# --- what the doctor says -------------------------------------------------------------------------


Findings = dict[str, dict[str, str]]


def _doctor(rank: int, size: int, spoil: Callable[[], None] | None) -> Findings:
    """Return the findings of the doctor about this node by the name of the check."""
    if spoil is not None:
        spoil()
    return {finding.check: finding.as_dict() for finding in of_this_machine(Host())}


def _findings(spoil: Callable[[], None] | None = None, **env: str) -> Findings:
    (found,) = run_world(_doctor, 1, spoil, env=env, init=False, fresh=True)
    return found


def _device() -> str:
    return sorted(path.name for path in Path("/sys/class/infiniband").iterdir())[0]


Broken = tuple[Callable[[], None] | None, dict[str, str], str, str, str]
BROKEN: dict[str, Broken] = {
    "memlock": (_limit_pinned_memory, {}, "memlock", "64 KiB may be pinned", REMEDY),
    "no device": (_hide_devices, {}, "{}", "/dev/infiniband/uverbs", "--device=/dev/infiniband"),
    "GID index": (
        None,
        {"DLSLIME_GID_INDEX": "200"},
        "{}:1 GIDs",
        "the GID index is set to 200",
        "unset DLSLIME_GID_INDEX",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_doctor_names_what_rdma_lacks(what: str) -> None:
    spoil, env, check, text, remedy = BROKEN[what]
    expect_problem(_findings(spoil, **env)[check.format(_device())], text, remedy)


def test_doctor_finds_no_such_problem_on_a_sound_node() -> None:
    found = _findings()
    for _, _, check, *_ in BROKEN.values():
        finding = found.get(check.format(_device()))
        assert finding is None or finding["level"] == "ok", finding
