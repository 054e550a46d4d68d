"""vLLM's connector without vLLM: the scheduler's side, and limits on parameters of requests."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from dlslime_backend.integrations import _vllm_scheduler
from dlslime_backend.integrations._vllm_scheduler import Scheduler, Source
from harness import dlslime_only
from test_foreign_requests import BLOCK, BLOCKS, Lines, a_scheduler, params, request_of

pytestmark = dlslime_only


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
