"""vLLM's connector without vLLM: limits on requests that never end, or that name too much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from dlslime_backend.compat.nixl import _bindings as nixl
from dlslime_backend.integrations import _vllm_scheduler, _vllm_worker
from dlslime_backend.integrations._vllm_scheduler import Load, Plan, Scheduler, Source
from dlslime_backend.integrations._vllm_worker import Worker
from harness import await_key, dlslime_only, run_world, stopped, tell
from polling import eventually
from test_foreign_requests import BLOCK, BLOCKS, Lines, a_scheduler, params, request_of
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


# --- Loads that do not end ---


class Read:
    """A transfer that uses its memory until `quiet`, also after being cancelled."""

    def __init__(self) -> None:
        self.cancelled = self.quiet = False

    def cancel(self) -> None:
        self.cancelled = True

    def done(self) -> bool:
        if self.quiet and self.cancelled:
            raise nixl.nixlCancelledError("it was cancelled")
        return self.quiet


@pytest.fixture
def late() -> Iterator[Worker]:
    """Yield a worker with loads to be given up at once."""
    worker = a_worker("late", 0)
    worker._lease = 0.0
    yield worker
    worker.close()


def test_late_load_fails_when_its_memory_is_quiet_and_not_before(late: Worker) -> None:
    read = Read()
    with mock.patch.object(Worker, "_read", return_value=read), Lines() as lines:
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
    assert not late._until
    assert late.finished() == (set(), set())


def test_lost_peer_is_left_when_its_other_loads_are_quiet() -> None:
    worker, prefill, going, lost = a_worker("decode", 0), a_worker("prefill", 7), Read(), Read()
    source = source_of(prefill)
    with mock.patch.object(Worker, "_read", return_value=going):
        begin(worker, "going", source, [1])
    with (
        mock.patch.object(Worker, "_read", return_value=lost),
        mock.patch.object(lost, "done", side_effect=nixl.nixlRemoteDisconnectError("it is gone")),
    ):
        begin(worker, "lost", source, [2])
        assert worker.finished()[1] == {"lost"}
    assert worker.take_errors() == {2}
    assert worker.agent.check_remote_metadata(prefill.agent.name)
    with Lines() as lines:  # another description of the agent would allow leaving early
        assert not load(worker, "soon", source)
    assert "have not ended yet" in lines[0]
    going.cancelled = going.quiet = True
    assert worker.finished()[1] == {"going"}
    assert worker.take_errors() == {1}
    assert not worker.agent.check_remote_metadata(prefill.agent.name)
    assert load(worker, "later", source)
    worker.close()
    prefill.close()


def test_what_is_told_too_early_is_kept_in_few_bytes() -> None:
    worker = a_worker("prefill", 7)
    name = "n" * 4096
    worker._told(name.encode(), 0.0)
    assert all(isinstance(key, int) for key in worker._early)
    worker.start(Plan({}, {name: 60.0}))
    assert worker.finished()[0] == {name}
    worker.close()


def test_load_whose_check_does_not_end_fails_and_the_next_is_checked_again() -> None:
    worker, prefill, check = a_worker("decode", 0), a_worker("prefill", 7), Read()
    with mock.patch.object(Worker, "_post", return_value=check):
        done = Read()
        done.quiet = True
        with mock.patch.object(Worker, "_read", return_value=done):
            begin(worker, "d", source_of(prefill))
            worker.finished()
    assert not check.cancelled  # another load may wait for the check
    worker._until["d"] = 0.0
    with Lines() as lines:
        assert worker.finished() == (set(), {"d"})
    assert worker.take_errors() == {0}
    assert len(lines) == 1
    assert check.cancelled
    check.quiet = True
    assert load(worker, "next", source_of(prefill))
    worker.close()


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
    worker._lease = 0.0
    with stopped(1), Lines() as lines:
        begin(worker, "late", source, [5, 6])
        eventually(lambda: "late" in worker.finished()[1])
        assert worker.take_errors() == {5, 6}
        for cache in worker._caches.values():
            cache[5:7] = 9  # another request has the blocks now
    assert len(lines) == 1
    worker._lease = 60.0
    assert load(worker, "next", source)
    for cache in worker._caches.values():
        assert bool((cache[5:7] == 9).all())
    tell("over")


def test_load_of_a_silent_peer_fails_and_nothing_of_it_comes_later() -> None:
    run_world(_silent, 2, init=False, env={"DLSLIME_CMA": "off"})


# --- Workers named by requests ---


def test_idle_workers_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vllm_worker, "_MOST_PEERS", 2, raising=False)
    decode = a_worker("decode", 0)
    prefills = [a_worker(f"prefill {number}", 7) for number in range(4)]
    for number in (0, 1, 0, 2):  # the first prefill is used again
        assert load(decode, f"d{number}", source_of(prefills[number]))
    assert {peer.agent.split()[1] for peer in decode._peers.values()} == {"0", "2"}
    assert len(decode.agent._remotes) == 2
    for number in (3, 1, 0, 2):
        assert load(decode, f"e{number}", source_of(prefills[number]))
        assert len(decode._peers) == 2
    assert len(decode._spare) == 0
    decode.close()


@pytest.mark.parametrize("busy", ["with_a_load", "with_what_it_was_not_told_yet"])
def test_busy_workers_stay_and_the_request_fails(
    busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_vllm_worker, "_MOST_PEERS", 1, raising=False)
    decode, first, second = (a_worker(name, 7) for name in ("decode", "first", "second"))
    read = Read()
    if busy == "with_a_load":
        with mock.patch.object(Worker, "_read", return_value=read):
            begin(decode, "long", source_of(first))
    else:
        assert load(decode, "short", source_of(first))
        decode.agent._remote(next(iter(decode._peers.values())).agent)._telling.append(
            mock.Mock(ended=False)
        )
    with Lines() as lines:
        assert not load(decode, "other", source_of(second))
    assert "blocks are read from 1 workers already" in lines[0]
    assert len(decode.agent._remotes) == 1
    if busy == "with_a_load":
        read.quiet = True
        eventually(lambda: "long" in decode.finished()[1])
        assert load(decode, "again", source_of(second))
    decode.close()


# --- Long parameters ---


def test_parameters_are_decoded_once_and_forgotten_when_the_load_is_planned() -> None:
    scheduler, request = a_scheduler(), request_of(params())
    with mock.patch.object(Source, "decode", wraps=Source.decode) as decode:
        scheduler.arrived(request)
        for _ in range(50):  # until blocks are free
            assert scheduler.matched(request, 0) == 30
        assert decode.call_count == 1
        mine = mock.Mock(**{"get_block_ids.return_value": ([*range(8)],),
                            "get_unhashed_block_ids.return_value": [*range(8)]})  # fmt: skip
        scheduler.allocated(request, mine, 30)
        assert decode.call_count == 1
    assert len(scheduler.take_plan().loads[request.request_id].there) == 8
    assert not scheduler._sources


def test_parameters_of_a_request_that_ends_early_are_forgotten() -> None:
    scheduler, request = a_scheduler(), request_of(params())
    scheduler.arrived(request)
    scheduler.finished(request, [], False)
    assert scheduler.take_plan().loads[request.request_id].here == []
    assert not scheduler._sources


def test_parameters_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vllm_scheduler, "_MOST_SOURCES", 3, raising=False)
    scheduler = a_scheduler()
    requests = [request_of(params(), f"r{number}") for number in range(5)]
    for request in requests:
        scheduler.arrived(request)
    assert len(scheduler._sources) == 3
    assert [scheduler.matched(request, 0) for request in requests] == [30] * 5


def test_another_request_of_the_same_name_has_its_own_parameters() -> None:
    scheduler = a_scheduler()
    for tokens in (30, 12):
        request = request_of(params(remote_num_tokens=tokens))
        scheduler.arrived(request)
        assert scheduler.matched(request, 0) == tokens


def test_more_blocks_than_the_prompt_has_are_refused_before_they_are_looked_at() -> None:
    scheduler = a_scheduler()
    for blocks in ([*range(9)], ["no number"] * (1 << 20)):
        request = request_of(params(remote_block_ids=blocks))
        with Lines() as lines:
            scheduler.arrived(request)
            assert scheduler.matched(request, 0) == 0
        (line,) = lines
        assert f"remote_block_ids has {len(blocks)} items, not from 0 to 8" in line


def test_prefill_tells_of_the_blocks_of_the_prompt_only() -> None:
    prefill = Scheduler("prefill", 1, BLOCK, 60.0)
    prefill.set_caches({0: "cache"})
    request: Any = request_of({"do_remote_decode": True}, "p")
    request.num_computed_tokens = 34  # with generated or guessed tokens
    answer = prefill.finished(request, [*range(BLOCKS)], True)
    assert answer is not None
    assert answer["remote_block_ids"] == [*range(8)]
    decode, loaded = a_scheduler(), request_of(json.loads(json.dumps(answer)))
    decode.arrived(loaded)
    assert decode.matched(loaded, 0) == 30
