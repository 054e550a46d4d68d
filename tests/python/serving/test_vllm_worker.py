"""vLLM's connector without vLLM: loads that never end, and workers named by requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from dlslime_backend.integrations import _vllm_loads
from dlslime_backend.integrations._vllm_loads import _Peer
from dlslime_backend.integrations._vllm_scheduler import Load, Plan, Source
from dlslime_backend.integrations._vllm_worker import Worker
from harness import await_key, dlslime_only, run_world, stopped, tell
from polling import eventually
from test_foreign_requests import BLOCK, Lines
from test_foreign_requests import _worker as a_worker

pytestmark = dlslime_only


def source_of(worker: Worker, request: str = "p0") -> Source:
    assert worker.cache is not None
    return Source("prefill", request, [0], BLOCK, [worker.cache.encode()])


def begin(worker: Worker, name: str, source: Source, blocks: list[int] | None = None) -> None:
    blocks = [0] if blocks is None else blocks
    worker.start(Plan({name: Load(source, blocks, blocks)}))


def load(worker: Worker, name: str, source: Source) -> bool:
    """Tell whether a block is loaded."""
    begin(worker, name, source)
    eventually(lambda: name in worker.finished()[1])
    return not worker.take_errors()


def test_worker_stands_on_the_one_sided_api_alone() -> None:
    program = (
        "import sys, dlslime_backend.integrations._vllm_worker; "
        "print(*(name for name in sys.modules if name.startswith('dlslime_backend.')))"
    )
    names = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert "dlslime_backend.one_sided" in names
    assert not [name for name in names if name.startswith("dlslime_backend.compat")]


# --- Loads that do not end ---


class Read:
    """A transfer that uses its memory until `quiet`, also after being cancelled."""

    def __init__(self) -> None:
        self.cancelled = self.quiet = False

    def cancel(self) -> None:
        self.cancelled = True

    def done(self) -> bool:
        return self.quiet

    def wait(self, timeout: float) -> None:
        if self.cancelled:
            raise dist.DistBackendError("it was cancelled")


class Lost(Read):
    """A read from a peer that has gone."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float) -> None:
        raise dist.DistBackendError("it is gone")


def reads(*made: Read) -> Any:
    """Let the next loads have these transfers."""
    return mock.patch.object(_Peer, "_start", side_effect=made)


@pytest.fixture
def late() -> Iterator[Worker]:
    """Yield a worker with loads to be given up at once."""
    worker = a_worker("late", 0)
    worker._loads._seconds = 0.0
    yield worker
    worker.close()


def test_late_load_fails_when_its_memory_is_quiet_and_not_before(late: Worker) -> None:
    read = Read()
    with reads(read), Lines() as lines:
        begin(late, "d", source_of(a_worker("prefill", 7)), [3, 4])
        for _ in range(3):
            assert late.finished() == (set(), set())
        assert read.cancelled
        assert not late.take_errors()
        read.quiet = True
        assert late.finished() == (set(), {"d"})
    assert late.take_errors() == {3, 4}
    assert lines == ["the blocks of request d can't be read from engine prefill: "
                     "they have not come within 0 seconds"]  # fmt: skip
    assert late.finished() == (set(), set())
    (peer,) = late._loads._peers.values()  # cancelling is no loss of the peer
    assert not peer.busy


def test_lost_peer_is_left_when_its_other_loads_are_quiet_and_reached_again_meanwhile() -> None:
    worker, prefill, going = a_worker("decode", 0), a_worker("prefill", 7), Read()
    source = source_of(prefill)
    with reads(going, Lost()), Lines() as lines:
        begin(worker, "going", source, [1])
        begin(worker, "lost", source, [2])
        assert worker.finished()[1] == {"lost"}
    assert lines == ["the blocks of request lost can't be read from engine prefill: it is gone"]
    assert worker.take_errors() == {2}
    (peer,) = worker._loads._leaving
    assert load(worker, "soon", source)
    assert worker._loads._leaving == [peer]
    with pytest.raises(ValueError, match="is connected already"):  # and so is not closed
        peer._endpoint.connect(a_worker("third", 7)._leases.address)
    going.cancelled = going.quiet = True
    assert worker.finished()[1] == {"going"}
    assert worker.take_errors() == {1}
    assert not worker._loads._leaving
    with pytest.raises(ValueError, match="has been closed"):
        peer._endpoint.send(torch.zeros(1))
    assert load(worker, "later", source)
    worker.close()
    prefill.close()


def test_peer_that_is_not_reached_in_time_is_left() -> None:
    worker, prefill, read = a_worker("decode", 0), a_worker("prefill", 7), Lost()
    with reads(read), mock.patch.object(read, "wait", side_effect=TimeoutError("not in time")):
        begin(worker, "lost", source_of(prefill))
        assert worker.finished()[1] == {"lost"}
    assert worker.take_errors() == {0}
    assert not worker._loads._peers
    worker.close()


def test_load_whose_check_does_not_end_fails_and_the_next_is_checked_again() -> None:
    worker, prefill, check, done = a_worker("decode", 0), a_worker("prefill", 7), Read(), Read()
    done.quiet = True
    with reads(done), mock.patch.object(dlslime_backend.Prepared, "start", return_value=check):
        begin(worker, "d", source_of(prefill))
        worker.finished()
    assert not check.cancelled  # another load may wait for the check
    (peer,) = worker._loads._peers.values()
    peer._checking[0].until = 0.0
    with Lines() as lines:
        assert worker.finished() == (set(), {"d"})
    assert worker.take_errors() == {0}
    assert len(lines) == 1
    assert check.cancelled
    check.quiet = True
    assert load(worker, "next", source_of(prefill))
    assert list(worker._loads._peers.values()) == [peer]
    worker.close()


def test_load_waits_for_a_check_that_begins_after_its_read() -> None:
    """A check in progress may have read the list before the lease of the next load expired."""
    worker, prefill, check, first, second = a_worker("decode", 0), a_worker("prefill", 7), *(
        Read() for _ in range(3)
    )  # fmt: skip
    source, start = source_of(prefill), dlslime_backend.Prepared.start
    with reads(first, second):
        begin(worker, "first", source, [1])
        begin(worker, "second", source, [2])
    first.quiet = True
    with mock.patch.object(dlslime_backend.Prepared, "start", return_value=check):
        worker.finished()
    second.quiet = True
    assert worker.finished() == (set(), set())
    prefill.start(Plan({}, {"p0": 0.0}))
    assert prefill.finished()[0] == {"p0"}  # freed: the blocks may be in new use
    check.quiet = True
    with mock.patch.object(dlslime_backend.Prepared, "start", autospec=True, side_effect=start):
        assert worker.finished()[1] == {"first"}
        assert not worker.take_errors()
        with Lines() as lines:
            eventually(lambda: "second" in worker.finished()[1])
    assert worker.take_errors() == {2}
    assert "they were given up meanwhile" in lines[0]
    worker.close()
    prefill.close()


def _silent(rank: int, size: int) -> None:
    """Rank 1 is connected and then answers no process."""
    if rank == 1:
        worker = a_worker("prefill", 7)
        assert worker.cache is not None
        tell("cache", json.dumps(worker.cache.encode()))
        await_key("connected")
        await_key("over")
        return
    worker = a_worker("decode", 0)
    source = Source("prefill", "p0", [0], BLOCK, [json.loads(await_key("cache"))])
    assert load(worker, "first", source)
    tell("connected")
    worker._loads._seconds = 0.0
    with stopped(1), Lines() as lines:
        begin(worker, "late", source, [5, 6])
        eventually(lambda: "late" in worker.finished()[1])
        assert worker.take_errors() == {5, 6}
        for cache in worker._caches.values():
            cache[5:7] = 9  # another request has the blocks now
    assert len(lines) == 1
    worker._loads._seconds = 60.0
    assert load(worker, "next", source)
    for cache in worker._caches.values():
        assert bool((cache[5:7] == 9).all())
    tell("over")


def test_load_of_a_silent_peer_fails_and_nothing_of_it_comes_later() -> None:
    run_world(_silent, 2, init=False, env={"DLSLIME_CMA": "off"})


# --- Workers named by requests ---


def prefills_of(decode: Worker) -> set[bytes]:
    """Return the addresses of the workers known to a worker."""
    return {peer._cache.hub for peer in decode._loads._peers.values()}


def test_idle_workers_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vllm_loads, "_MOST_PEERS", 2)
    decode = a_worker("decode", 0)
    prefills = [a_worker(f"prefill {number}", 7) for number in range(4)]
    assert load(decode, "d0", source_of(prefills[0]))
    settle(decode)
    for number in (1, 0):  # the first prefill is used again
        assert load(decode, f"e{number}", source_of(prefills[number]))
        settle(decode)
    left = decode._loads._peers[source_of(prefills[1]).caches[0]]
    assert load(decode, "d2", source_of(prefills[2]))
    settle(decode)
    assert prefills_of(decode) == {prefills[number]._leases.address for number in (0, 2)}
    for number in (3, 1, 0, 2):
        assert load(decode, f"f{number}", source_of(prefills[number]))
        settle(decode)
        assert len(decode._loads._peers) == 2
    with pytest.raises(ValueError, match="has been closed"):
        left._endpoint.send(torch.zeros(1))
    decode.close()


@pytest.mark.parametrize("busy", ["with_a_load", "with_what_it_was_not_told_yet"])
def test_busy_workers_stay_and_the_request_fails(
    busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_vllm_loads, "_MOST_PEERS", 1)
    decode, first, second = (a_worker(name, 7) for name in ("decode", "first", "second"))
    read = Read()
    if busy == "with_a_load":
        with reads(read):
            begin(decode, "long", source_of(first))
    else:
        with mock.patch.object(dlslime_backend.Endpoint, "send", return_value=read):
            assert load(decode, "short", source_of(first))
    with Lines() as lines:
        assert not load(decode, "other", source_of(second))
    assert "blocks are read from 1 workers already" in lines[0]
    assert prefills_of(decode) == {first._leases.address}
    read.quiet = True
    settle(decode)
    assert load(decode, "again", source_of(second))
    decode.close()


def settle(worker: Worker) -> None:
    """Make progress until all messages of a worker are sent."""

    def idle() -> bool:
        worker.finished()
        return not any(peer.busy for peer in worker._loads._peers.values())

    eventually(idle)
