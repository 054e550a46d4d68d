"""Broken set-ups of RDMA: what the ranks of two hosts say first, and what the doctor says.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

import dlslime_backend
from dlslime_backend.cli.doctor import of_this_machine
from dlslime_backend.cli.host import Host
from harness import init_group, run_world, sync
from patterns import blank, expect_pattern, pattern
from test_setups_job import expect_problem

PAIR = 2
WARN = {"DLSLIME_FALLBACK": "warn"}  # the default, changed by run_tests
LITTLE = 64 << 10  # bytes that may be pinned: less than one ring
CAUSE = "the limit on locked memory is 64 KiB"
REMEDY = "ulimit -l unlimited"
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 16384, 1 << 18
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


def _limit_pinned_memory() -> None:
    """Let the process, without root's exemption, pin 64 KiB."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LITTLE, LITTLE))
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def _exchange(rank: int) -> None:
    received = blank(300_000)
    works = [dist.isend(pattern(300_000, rank), 1 - rank), dist.irecv(received, 1 - rank)]
    for work in works:
        work.wait()
    expect_pattern(received, 1 - rank)


# --- 64 KiB of pinned memory ----------------------------------------------------------------------


def _with_little_memory(rank: int, size: int, poor: list[int]) -> str:
    if rank in poor:
        _limit_pinned_memory()
    init_group()
    _exchange(rank)
    told = dlslime_backend.explain(1 - rank)
    assert told["route"] == "tcp", told
    sync("through")
    return str(told["text"])


@pytest.mark.parametrize("poor", [[0], [1], [0, 1]], ids=["node_0", "node_1", "both"])
def test_limit_on_locked_memory_is_named_with_its_remedy(poor: list[int]) -> None:
    told = run_world(
        _with_little_memory, PAIR, poor, env=WARN, init=False, fresh=True, with_output=True
    )
    for text, _ in told:  # of explain()
        assert CAUSE in text, text
        assert REMEDY in text, text
    said = [output for _, output in told if "go over TCP, the slowest route" in output]
    assert len(said) == 1, "the end that connects says it once"
    assert CAUSE in said[0], said
    assert REMEDY in said[0], said


def _forbidden(rank: int, size: int, poor: int) -> str:
    if rank == poor:
        _limit_pinned_memory()
    init_group()
    with pytest.raises(dist.DistBackendError) as failure:
        _exchange(rank)
    sync("failed")
    return str(failure.value)


@pytest.mark.parametrize("poor", [0, 1])
def test_job_that_forbids_tcp_names_the_limit_at_both_ends(poor: int) -> None:
    for text in run_world(_forbidden, PAIR, poor, init=False, fresh=True):
        assert "falling back to TCP is forbidden" in text, text
        assert CAUSE in text, text
        assert REMEDY in text, text


# --- what the doctor says -------------------------------------------------------------------------


def _hide_devices() -> None:
    """Give the process an empty /dev/infiniband, like a container without the devices."""
    calls = [
        _libc.unshare(_CLONE_NEWNS),
        _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None),
        _libc.mount(b"none", b"/dev/infiniband", b"tmpfs", 0, None),
    ]
    assert not any(calls), os.strerror(ctypes.get_errno())


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
