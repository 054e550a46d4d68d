"""NIXL's Python API over dlslime, compared with NIXL itself, and failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl import (
    agent_name_of,
    nixl_agent,
    nixl_agent_config,
    nixl_thread_sync_t,
)
from dlslime_backend.compat.nixl._api import nixl_xfer_handle
from harness import (
    PATIENCE,
    await_death,
    await_key,
    dlslime_only,
    run_world,
    send_signal,
    stopped,
    tell,
)
from paths import PROGRAMS
from patterns import pattern
from wheels import made, pip

PROGRAM = PROGRAMS / "nixl_calls.py"
VERSION = "1.5.1"
PAGE = 4096
LARGE = 256 << 20

pytestmark = dlslime_only


def _calls(**env: str) -> list[Any]:
    """Return the result of each call of the program."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    calls: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return calls


def test_every_call_does_what_nixls_own_does() -> None:
    ours = _calls(DLSLIME_PROVIDE="nixl")
    packages = [f"nixl=={VERSION}", f"nixl-cu12=={VERSION}"]
    original = made(
        f"nixl-{VERSION}", lambda folder: pip("install", [f"--target={folder}"], packages)
    )
    # An installed original takes precedence over dlslime's.
    theirs = _calls(DLSLIME_PROVIDE="nixl", PYTHONPATH=str(original), NIXL_LOG_LEVEL="FATAL")
    assert len(ours) > 60
    assert ours == theirs


def _wait(agent: nixl_agent, handle: nixl_xfer_handle, seconds: float = 30.0 * PATIENCE) -> str:
    """Wait for a transfer; return its state, or the name of its exception."""
    until = time.monotonic() + seconds
    try:
        while (state := agent.check_xfer_state(handle)) == "PROC" and time.monotonic() < until:
            time.sleep(0.001)
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    return state


def _pair(name: str = "b", nbytes: int = 64 * PAGE) -> tuple[Any, ...]:
    """Make two agents in the process, each with memory; the first knows the second."""
    one, other = nixl_agent("a"), nixl_agent(name)
    memories = torch.zeros(nbytes, dtype=torch.uint8), torch.ones(nbytes, dtype=torch.uint8)
    one.register_memory(memories[0])
    other.register_memory(memories[1])
    one.add_remote_agent(other.get_agent_metadata())
    return one, other, *memories


def _read(agent: nixl_agent, mine: torch.Tensor, theirs: torch.Tensor) -> nixl_xfer_handle:
    here, there = agent.get_xfer_descs(mine), agent.get_xfer_descs(theirs)
    assert here is not None
    assert there is not None
    return agent.initialize_xfer("READ", here, there, "b", b"read")


def test_regions_that_overlap_and_lie_apart() -> None:
    one, other = nixl_agent("a"), nixl_agent("b")
    mine, theirs = torch.zeros(PAGE * 8, dtype=torch.uint8), pattern(256 * PAGE, 3)
    one.register_memory([mine[: 4 * PAGE], mine[4 * PAGE :]])
    # The second region begins nearer to the address, but ends before.
    other.register_memory([theirs[: 8 * PAGE], theirs[PAGE : 2 * PAGE]])
    one.add_remote_agent(other.get_agent_metadata())
    here = one.prep_xfer_dlist("", [(mine.data_ptr() + i * PAGE, PAGE, 0) for i in range(8)], "cpu")
    rows = [(theirs.data_ptr() + i * PAGE + 100 * (i < 7), PAGE, 0) for i in range(8)]
    there = one.prep_xfer_dlist("b", rows, "DRAM")
    order = np.array([7, 0, 4, 3, 1], dtype=np.int32)
    handle = one.make_prepped_xfer("READ", here, order, there, order)
    one.transfer(handle)
    assert _wait(one, handle) == "DONE"
    for page in range(8):
        start = page * PAGE + 100 * (page < 7)
        expected = theirs[start : start + PAGE] if page in order else torch.zeros(PAGE)
        assert mine[page * PAGE : (page + 1) * PAGE].equal(expected.to(torch.uint8)), page


def test_strided_descriptors_are_blocks() -> None:
    one, _, mine, theirs = _pair()
    rows = np.array([[theirs.data_ptr(), 100, 0, PAGE, 3]], dtype=np.uint64)
    there = one.prep_xfer_dlist("b", rows, "DRAM")
    here = one.prep_xfer_dlist("", [(mine.data_ptr() + 200 * i, 100, 0) for i in range(3)], "DRAM")
    handle = one.make_prepped_xfer("WRITE", here, [0, 1, 2], there, [0, 1, 2])
    one.transfer(handle)
    assert _wait(one, handle) == "DONE"
    assert theirs.nonzero().numel() == theirs.numel() - 300
    with pytest.raises(ValueError, match="mem_type"):
        one.prep_xfer_dlist("b", rows)


def test_partial_metadata_tells_of_some_memory() -> None:
    one, other, _, _ = _pair()
    more = torch.zeros(PAGE, dtype=torch.uint8)
    registered = other.register_memory(more)
    descs = one.get_xfer_descs(more)
    assert not one.check_remote_metadata("b", descs)
    one.add_remote_agent(other.get_partial_agent_metadata(registered))
    assert one.check_remote_metadata(b"b", descs)
    with pytest.raises(b.nixlNotFoundError, match="address of c is not known"):
        one.add_remote_agent(nixl_agent("c").get_partial_agent_metadata(registered))


def test_memory_that_takes_the_place_of_other_memory() -> None:
    one, other, mine, theirs = _pair()
    whole = other.get_reg_descs(theirs)
    assert whole is not None
    other.deregister_memory(whole)
    stale = _read(one, mine, theirs)
    with contextlib.suppress(b.nixlInvalidParamError):  # the failure may be known at once
        one.transfer(stale)
    assert _wait(one, stale) == "nixlInvalidParamError"
    other.register_memory(theirs[PAGE:])
    other.register_memory(theirs[: 2 * PAGE])
    one.add_remote_agent(other.get_agent_metadata())
    fresh = _read(one, mine[: 2 * PAGE], theirs[: 2 * PAGE])
    one.transfer(fresh)
    assert _wait(one, fresh) == "DONE"
    assert mine[: 2 * PAGE].equal(theirs[: 2 * PAGE])


def test_notifications_come_from_many_in_the_order_of_each() -> None:
    hub = nixl_agent("hub")
    senders = [nixl_agent(f"sender {i}") for i in range(5)]
    for sender in senders:
        sender.add_remote_agent(hub.get_agent_metadata())
        for i in range(20):
            sender.send_notif("hub", f"{i}")
    until = time.monotonic() + 30
    while sum(map(len, hub.update_notifs().values())) < 100 and time.monotonic() < until:
        time.sleep(0.001)
    expected = [b"%d" % i for i in range(20)]
    assert hub.notifs == {sender.name: expected for sender in senders}
    senders[0].send_notif("hub", bytes(64 << 10))
    with pytest.raises(b.nixlInvalidParamError, match="65537 bytes; at most 65536"):
        senders[0].send_notif("hub", bytes((64 << 10) + 1))


def test_an_agent_that_starts_again_replaces_itself() -> None:
    one, other, mine, theirs = _pair()
    handle = _read(one, mine, theirs)
    other.__del__()
    again = nixl_agent("b")
    again.register_memory(theirs)
    one.add_remote_agent(again.get_agent_metadata())
    with pytest.raises(b.nixlNotFoundError, match="started again"):
        one.transfer(handle)
    fresh = _read(one, mine, theirs)
    one.transfer(fresh)
    assert _wait(one, fresh) == "DONE"


def test_what_dlslime_does_not_do_is_refused() -> None:
    one, _, mine, theirs = _pair()
    with pytest.raises(b.nixlNotSupportedError, match="not FILE_SEG"):
        one.register_memory([(mine.data_ptr(), 10, 0, "")], "FILE")
    with pytest.raises(b.nixlInvalidParamError, match="not VRAM_SEG, but memory of cpu"):
        one.register_memory([(mine.data_ptr(), 10, 0, "")], "VRAM")
    with pytest.raises(b.nixlNotSupportedError, match="add_remote_agent"):
        nixl_agent("c", nixl_agent_config(enable_listen_thread=True))
    with pytest.raises(b.nixlNotSupportedError, match="add_remote_agent"):
        one.send_local_metadata("10.0.0.1")
    with pytest.raises(TypeError, match="nixl_thread_sync_t"):
        nixl_agent_config(sync_mode=3)  # type: ignore[arg-type]
    nixl_agent_config(sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_RW)
    with pytest.raises(b.nixlNotFoundError, match="dlslime is no NOPE"):
        one.create_backend("NOPE")
    with pytest.raises(b.nixlInvalidParamError, match="exists already"):
        one.create_backend("UCX")
    with pytest.raises(KeyError):
        one.register_memory(mine, backends=["LIBFABRIC"])
    here = one.prep_xfer_dlist("", [(mine.data_ptr(), 10, 0), (mine.data_ptr() + 5, 10, 0)], "DRAM")
    there = one.prep_xfer_dlist("b", [(theirs.data_ptr(), 10, 0)] * 2, "DRAM")
    overlapping = one.make_prepped_xfer("READ", here, [0, 1], there, [0, 1])
    with pytest.raises(b.nixlInvalidParamError, match="overlap"):
        one.transfer(overlapping)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b'["other", "x", ""]', b'["dlslime nixl 1", "x", true, 3]', b"{}", b"3"],
)
def test_metadata_of_no_agent_is_refused(content: bytes) -> None:
    with pytest.raises(b.nixlMismatchError):
        nixl_agent("a").add_remote_agent(content)
    with pytest.raises(b.nixlMismatchError):
        nixl_agent("a").deserialize_descs(content)


def test_damaged_metadata_is_refused_whole() -> None:
    one, other = nixl_agent("a"), nixl_agent("b")
    other.register_memory(torch.zeros(10))
    metadata = json.loads(other.get_agent_metadata())
    for field in range(3, len(metadata)):
        damaged = list(metadata)
        damaged[field] = damaged[field][:20]
        with pytest.raises(b.nixlMismatchError):
            one.add_remote_agent(json.dumps(damaged).encode())


def _target(rank: int, size: int, ends: str) -> None:
    agent = nixl_agent(f"agent {rank}")
    memory = torch.full((LARGE,), rank, dtype=torch.uint8)
    agent.register_memory(memory)
    if rank == 1:
        tell("metadata", agent.get_agent_metadata().decode())
        tell("address", str(memory.data_ptr()))
        await_key("over")
        return
    agent.add_remote_agent(await_key("metadata").encode())
    address = int(await_key("address"))
    here = agent.get_xfer_descs(memory)
    there = agent.get_xfer_descs([(address, LARGE, 0)], "DRAM")
    assert here is not None
    assert there is not None
    handle = agent.initialize_xfer("READ", here, there, "agent 1")
    agent.make_connection("agent 1")
    (_killed if ends == "killed" else _released)(agent, handle)
    tell("over")


def _killed(agent: nixl_agent, handle: nixl_xfer_handle) -> None:
    send_signal(1, signal.SIGKILL)
    await_death(1)
    begun = time.monotonic()
    with contextlib.suppress(b.nixlRemoteDisconnectError):  # the failure may be known at once
        agent.transfer(handle)
    assert _wait(agent, handle) == "nixlRemoteDisconnectError"
    assert time.monotonic() - begun < 20


def _released(agent: nixl_agent, handle: nixl_xfer_handle) -> None:
    with stopped(1):
        agent.transfer(handle)
        agent.release_xfer_handle(handle)
        assert _wait(agent, handle) in ("nixlCancelledError", "DONE")
    agent.transfer(handle)
    assert _wait(agent, handle) == "DONE"


@pytest.mark.parametrize("ends", ["killed", "released"])
def test_a_transfer_whose_other_agent(ends: str) -> None:
    run_world(_target, 2, ends, init=False, may_die=[1] if ends == "killed" else [])


def test_metadata_tell_the_name_of_their_agent_without_adding_the_agent() -> None:
    agent = nixl_agent("a name")
    memory = agent.register_memory(torch.zeros(10))
    assert agent_name_of(agent.get_agent_metadata()) == "a name"
    assert agent_name_of(agent.get_partial_agent_metadata(memory)) == "a name"
    for wrong in (b"", b"[]", b"\xff", agent.get_agent_metadata()[:-1]):
        with pytest.raises(b.nixlMismatchError, match="no metadata"):
            agent_name_of(wrong)
