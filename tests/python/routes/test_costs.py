"""Costs grow with the size of a call, not with the number of objects, nor in Python for each piece.

The tests count calls made by Python, by the profiler: counts are equal on every machine. For a
single call, the processor time is compared with the time for sixteen times as many pieces.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dlslime_backend
from dlslime_backend.compat import dlslime as upstream
from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl import nixl_agent
from harness import dlslime_only
from polling import eventually

pytestmark = dlslime_only

FEW, MANY = 100, 1600
PIECE = 64
Work = Callable[[], object]


def calls_of(work: Work) -> int:
    """Return the number of function calls, in Python and in C."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def seconds_of(prepare: Callable[[], Work], tries: int = 3) -> float:
    """Return the least processor time of the thread over some tries, each with fresh objects."""
    times = []
    for _ in range(tries):
        work = prepare()
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


class Agents:
    """Two agents in the process, each with memory in `registrations` registrations."""

    def __init__(self, count: int, registrations: int = 1) -> None:
        self.count = count
        self.one, self.other = nixl_agent("one"), nixl_agent("other")
        self.mine = torch.zeros(count * PIECE, dtype=torch.uint8)
        self.theirs = torch.ones(count * PIECE, dtype=torch.uint8)
        self.registered: list[b.nixlRegDList] = []
        for agent, memory in ((self.one, self.mine), (self.other, self.theirs)):
            for part in memory.chunk(registrations):
                self.registered.append(agent.register_memory(part))
        self.one.add_remote_agent(self.other.get_agent_metadata())

    def table(self, memory: torch.Tensor, count: int | None = None) -> b.nixlXferDList:
        """Return the first `count` pieces of a memory as a list of descriptors."""
        rows = np.zeros((self.count if count is None else count, 3), dtype=np.uint64)
        rows[:, 0] = memory.data_ptr() + PIECE * np.arange(len(rows))
        rows[:, 1] = PIECE
        found = self.one.get_xfer_descs(rows, "DRAM")
        assert found is not None
        return found


def _transfer(agents: Agents, count: int | None = None) -> None:
    here, there = (agents.table(memory, count) for memory in (agents.mine, agents.theirs))
    handle = agents.one.initialize_xfer("READ", here, there, "other")
    agents.one.transfer(handle)


# --- No search through all other objects ---


def _deregistered(count: int) -> int:
    agents = Agents(count, registrations=count)
    mine = agents.registered[:count]

    def work() -> None:
        for descs in reversed(mine):
            agents.one.deregister_memory(descs)

    return calls_of(work)


def test_registration_is_given_back_without_a_look_at_the_others() -> None:
    few, many = _deregistered(FEW), _deregistered(MANY)
    assert many < 4 * few * MANY / FEW, (
        f"{few / FEW:.0f} calls each of few, {many / MANY:.0f} of many"
    )


def _twice(count: int) -> None:
    """A memory registered twice, and a part of the memory: each registration ends once."""
    agent, memory = nixl_agent("agent"), torch.zeros(count * PIECE, dtype=torch.uint8)
    whole = [agent.register_memory(memory) for _ in range(2)]
    part = agent.register_memory(memory[:PIECE])
    agent.deregister_memory(part)
    for descs in whole:
        agent.deregister_memory(descs)
    with pytest.raises(b.nixlNotFoundError, match="are not registered"):
        agent.deregister_memory(part)


def test_memory_that_is_registered_twice_is_given_back_twice() -> None:
    _twice(FEW)


def _one_of(registrations: int) -> int:
    agents = Agents(registrations, registrations)
    _transfer(agents, 1)  # later transfers profit from look-ups of the first
    return calls_of(lambda: _transfer(agents, 1))


def test_one_transfer_costs_the_same_among_many_registrations() -> None:
    few, many = _one_of(FEW), _one_of(MANY)
    assert many < 2 * few, f"{few} calls among {FEW}, {many} among {MANY}"


def _partial_of(registrations: int) -> int:
    agents = Agents(registrations, registrations)
    descs = agents.registered[-1]
    return calls_of(lambda: agents.other.get_partial_agent_metadata(descs))


def test_partial_metadata_cost_the_same_among_many_registrations() -> None:
    few, many = _partial_of(FEW), _partial_of(MANY)
    assert many < 2 * few, f"{few} calls among {FEW}, {many} among {MANY}"


def _told_of(count: int) -> Work:
    one, other, memory = nixl_agent("one"), nixl_agent("other"), torch.zeros(PIECE)
    one.add_remote_agent(other.get_agent_metadata())
    parts = []
    for _ in range(count):
        descs = other.register_memory(memory)
        parts.append(other.get_partial_agent_metadata(descs))
        other.deregister_memory(descs)

    def work() -> None:
        for part in parts:
            one.add_remote_agent(part)

    return work


def _appended(count: int) -> Work:
    descs = b.nixlXferDList(b.DRAM_SEG)

    def work() -> None:
        for i in range(count):
            descs.append((i, PIECE, 0))
        assert descs.descCount() == count

    return work


@pytest.mark.parametrize(
    ("prepare", "few"),
    [
        pytest.param(_told_of, 1000, id="regions_that_an_agent_is_told_of_one_by_one"),
        pytest.param(_appended, 4000, id="descriptors_that_are_appended"),
    ],
)
def test_sixteen_times_as_many_take_some_sixteen_times_as_long(
    prepare: Callable[[int], Work], few: int
) -> None:
    one = seconds_of(lambda: prepare(few))
    sixteen = seconds_of(lambda: prepare(16 * few), tries=1)
    assert sixteen < 64 * one, f"{few}: {one:.4f} s, {16 * few}: {sixteen:.4f} s"


def _asked(senders: int) -> tuple[int, nixl_agent]:
    hub = nixl_agent("hub")
    agents = [nixl_agent(f"sender {i}") for i in range(senders)]
    for agent in agents:
        agent.add_remote_agent(hub.get_agent_metadata())
        agent.send_notif("hub", "hello")
    eventually(lambda: sum(map(len, hub.update_notifs().values())) == senders)
    return calls_of(hub.get_new_notifs), hub


def test_notifications_are_looked_for_with_few_calls_a_sender() -> None:
    count, _ = _asked(FEW)
    assert count < 8 * FEW, f"{count} calls for {FEW} senders"


# --- No work in Python for each piece ---


def _beside_another(count: int) -> int:
    """All descriptors but the first lie behind a second registration, inside of the first one."""
    agents = Agents(count)
    agents.other.register_memory(agents.theirs[:PIECE])
    agents.one.add_remote_agent(agents.other.get_agent_metadata())
    return calls_of(lambda: agents.one.prep_xfer_dlist("other", agents.table(agents.theirs)))


def test_descriptors_beside_a_second_registration_are_looked_up_together() -> None:
    few, many = _beside_another(FEW), _beside_another(MANY)
    assert many < 2 * few, f"{few} calls for {FEW} descriptors, {many} for {MANY}"


def test_descriptors_are_found_in_the_registration_that_holds_them() -> None:
    """Registrations that contain each other, overlap, touch and repeat, against a plain search."""
    random = np.random.default_rng(3)
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    base = memory.data_ptr()
    agent = nixl_agent("agent")
    spans = [(0, 1 << 16)] if random.integers(2) else []
    for _ in range(60):
        begin = int(random.integers(0, 1 << 15))
        spans.append((begin, int(random.integers(1, (1 << 16) - begin))))
    spans += [spans[3], (100, 10), (110, 10)]
    for begin, size in spans:
        agent.register_memory([(base + begin, size, 0, "")], "DRAM")
    pieces = [(int(random.integers(0, 1 << 16)), int(random.integers(0, 3000))) for _ in range(500)]
    held = [
        piece
        for piece in pieces
        if any(at <= piece[0] and sum(piece) <= at + size for at, size in spans)
    ]
    assert len(held) > 50
    prepared = agent.prep_xfer_dlist("", [(base + at, size, 0) for at, size in held], "DRAM")
    for (at, size), index, offset in zip(held, prepared.index, prepared.offsets, strict=True):
        region = prepared.regions[index]
        assert region.address + offset == base + at
        assert offset + size <= region.nbytes
    for piece in [piece for piece in pieces if piece not in held][:20]:
        with pytest.raises(b.nixlNotFoundError, match="are in none of"):
            agent.prep_xfer_dlist("", [(base + piece[0], piece[1], 0)], "DRAM")


def _assigned(count: int) -> int:
    one, other = upstream.RDMAEndpoint(), upstream.RDMAEndpoint()
    memories = [torch.zeros(count * PIECE, dtype=torch.uint8) for _ in range(2)]
    for endpoint, memory in zip((one, other), memories, strict=True):
        endpoint.register_memory_region("kv", memory.data_ptr(), 0, memory.nbytes)
    one.connect(other.endpoint_info())
    assignments = [("kv", "kv", i * PIECE, i * PIECE, PIECE) for i in reversed(range(count))]
    futures: list[Any] = []
    calls = calls_of(lambda: futures.append(one.read(assignments)))
    futures[0].wait()
    return calls


def test_assignments_of_dlslimes_api_are_taken_apart_without_a_call_for_each() -> None:
    few, many = _assigned(FEW), _assigned(MANY)
    assert many < 2 * few, f"{few} calls for {FEW} assignments, {many} for {MANY}"


def _pieces(count: int, form: str) -> int:
    one, other = dlslime_backend.Endpoint(), dlslime_backend.Endpoint()
    one.connect(other.address)
    other.connect(one.address)
    memories = [torch.zeros(count * PIECE, dtype=torch.uint8) for _ in range(2)]
    here, there = (dlslime_backend.register(memory) for memory in memories)
    remote = dlslime_backend.import_region(there.export())
    offsets = np.arange(count)[::-1].copy()
    forms: dict[str, Any] = {
        "list": [(i * PIECE, i * PIECE, PIECE) for i in reversed(range(count))],
        "arrays": (offsets * PIECE, offsets * PIECE, np.full(count, PIECE)),
        "pages": (offsets, torch.from_numpy(offsets), PIECE),
    }
    return calls_of(lambda: one.read(here, remote, forms[form]).wait())


@pytest.mark.parametrize("form", ["list", "arrays", "pages"])
def test_pieces_are_taken_apart_without_a_call_for_each(form: str) -> None:
    few, many = _pieces(FEW, form), _pieces(MANY, form)
    assert many < 2 * few, f"{few} calls for {FEW} pieces, {many} for {MANY}"
