"""vLLM's connector and requests with malformed `kv_transfer_params`, without vLLM.

The decode engine computes a malformed request, or the request fails. Neither the scheduler's nor
the worker's step raises, the log has one line about the request, and a good request comes through
alongside.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import logging
import time
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from dlslime_backend.integrations import _vllm_leases
from dlslime_backend.integrations._vllm_layout import Cache
from dlslime_backend.integrations._vllm_scheduler import Load, Plan, Scheduler, Source
from dlslime_backend.integrations._vllm_worker import Worker
from harness import dlslime_only
from mutations import VALUES, as_json, changed, damaged, fuzzed, nested

BLOCK, BLOCKS = 4, 16
LOGGER = logging.getLogger("dlslime.vllm")

pytestmark = dlslime_only


class Lines(logging.Handler):
    """The lines logged in the block, each checked to be a single printable line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        assert line.isprintable(), ascii(line)
        assert len(line) < 2000
        self.lines.append(line)

    def __enter__(self) -> list[str]:
        LOGGER.addHandler(self)
        LOGGER.propagate = False
        return self.lines

    def __exit__(self, *_: object) -> None:
        LOGGER.propagate = True
        LOGGER.removeHandler(self)


def _worker(name: str, fill: int) -> Worker:
    names = ["layer 0", "layer 1"]
    caches = {name: torch.full((BLOCKS, 64), fill, dtype=torch.uint8) for name in names}
    groups = [SimpleNamespace(layer_names=names)]
    config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    worker = Worker(name, 0, BLOCK, 60.0)
    worker.register(caches, config)
    return worker


@functools.cache
def prefill() -> Worker:
    return _worker("prefill", 7)


@functools.cache
def decode() -> Worker:
    return _worker("decode", 0)


def cache() -> dict[str, Any]:
    """Return the JSON of the description of prefill's cache."""
    assert prefill().cache is not None
    return json.loads(zlib.decompress(base64.b64decode(prefill().cache.encode())))


def encoded(fields: Any) -> str:
    return base64.b64encode(zlib.compress(as_json(fields).encode())).decode()


def params(**more: Any) -> dict[str, Any]:
    """Return prefill's answer, of 30 tokens in 8 blocks."""
    answer = Source("prefill", "p0", list(range(8)), 30, [encoded(cache())]).encode()
    return {**json.loads(json.dumps(answer)), **more}


def request_of(what: Any, name: str = "r\n0") -> SimpleNamespace:
    return SimpleNamespace(
        request_id=name, kv_transfer_params=what, num_prompt_tokens=30, num_computed_tokens=30
    )


def scheduled(scheduler: Scheduler, request: Any, cached: int = 0) -> int:
    """Treat a request as vLLM's scheduler does; return the number of tokens to load."""
    scheduler.arrived(request)
    count = scheduler.matched(request, cached * BLOCK)
    assert scheduler.matched(request, cached * BLOCK) == count  # repeated until blocks are free
    mine = list(range(8))
    blocks = SimpleNamespace(
        get_block_ids=lambda: (mine,), get_unhashed_block_ids=lambda: mine[cached:]
    )
    scheduler.allocated(request, blocks, count)
    scheduler.finished(request, mine, True)
    return count


def a_scheduler() -> Scheduler:
    return Scheduler("decode", 1, BLOCK, 60.0)


# The scheduler.


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"remote_num_tokens": 1e999}, "remote_num_tokens is inf, not an integer"),
        ({"remote_num_tokens": float("nan")}, "remote_num_tokens is nan"),
        ({"remote_num_tokens": 10**5000}, "remote_num_tokens is an integer of 16610 bits"),
        ({"remote_block_ids": None}, "remote_block_ids is None, not a list"),
        ({"remote_block_ids": [True]}, "a number of remote_block_ids is True"),
        ({"remote_block_ids": nested(5000)}, r"a number of remote_block_ids is \[\[\["),
        ({"remote_request_id": "\ud800"}, "remote_request_id is '.ud800', which UTF-8 can't"),
        ({"remote_request_id": "x" * 70_000}, "remote_request_id has 70000 characters"),
        ({"remote_engine_id": ["\n"]}, r"remote_engine_id is \['.n'\], not a text"),
        ({"dlslime": {}}, "dlslime is {}, not a list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_malformed_params_are_refused_once_and_decode_computes(wrong: Any, why: str) -> None:
    scheduler, request = a_scheduler(), request_of(params(**wrong))
    with pytest.raises(ValueError, match=why):
        Source.decode(params(**wrong), 1)
    with Lines() as lines:
        assert scheduled(scheduler, request) == 0
    (line,) = lines
    assert line.startswith("request r\\n0 is computed here: dlslime: no kv_transfer_params of a")
    assert not scheduler.take_plan().loads


@pytest.mark.parametrize("wrong", ["text", [1], 5, 1e999], ids=str)
def test_params_that_are_no_object_are_taken_away(wrong: Any) -> None:
    request = request_of(wrong)
    with Lines() as lines:
        assert scheduled(a_scheduler(), request) == 0
    assert len(lines) == 1
    assert request.kv_transfer_params is None


@fuzzed(300, what=VALUES | st.deferred(lambda: changed(params())), cached=st.integers(0, 7))
def test_scheduler_survives_any_params(what: Any, cached: int) -> None:
    scheduler = a_scheduler()
    with Lines() as lines:
        count = scheduled(scheduler, request_of(what), cached)
        assert len(lines) <= 1
        assert 0 <= count <= 30
        assert scheduled(scheduler, request_of(params(), "good")) == 30
        assert len(lines) <= 1
    assert len(scheduler.take_plan().loads["good"].there) == 8


# The workers.


def decoded_or_refused(text: str) -> None:
    try:
        Cache.decode(text)
    except ValueError as error:
        message = str(error)
        assert message.startswith("dlslime: no description of a KV cache: ")
        assert len(message) < 2000


@fuzzed(300, fields=st.deferred(lambda: changed(cache())))
def test_changed_descriptions_of_caches_are_refused(fields: Any) -> None:
    decoded_or_refused(encoded(fields))


@fuzzed(200, text=st.deferred(lambda: damaged(encoded(cache()).encode())))
def test_damaged_descriptions_of_caches_are_refused(text: bytes) -> None:
    decoded_or_refused(text.decode("latin-1"))


@fuzzed(200, content=st.deferred(lambda: damaged(zlib.compress(json.dumps(cache()).encode()))))
def test_damaged_streams_of_caches_are_refused(content: bytes) -> None:
    decoded_or_refused(base64.b64encode(content).decode())


NAMES = (f"load {number}" for number in itertools.count())
STEPS = (
    "[" * 292,
    "[" * 100_000,
    '{"format": 1e999}',
    json.dumps({"format": "dlslime vllm 3"}),
    "[]" + " " * (17 << 20),
)


def loaded(source: Source, there: list[int]) -> bool:
    """Tell whether a worker loads the blocks; expect one line in the log otherwise."""
    worker, name = decode(), next(NAMES)
    with Lines() as lines:
        worker.start(Plan({name: Load(source, there, list(range(len(there))))}))
        received: set[str] = set()
        until = time.monotonic() + 20
        while name not in received:
            assert time.monotonic() < until, "it takes too long"
            received |= worker.finished()[1]
    prefill().finished()  # as in prefill's steps: accepts peers and receives notifications
    errors = worker.take_errors()
    assert errors in (set(), set(range(len(there))))
    assert len(lines) == (1 if errors else 0), lines
    return not errors


@pytest.mark.parametrize("text", STEPS, ids=[text[:20] for text in STEPS])
def test_descriptions_that_ended_the_worker_fail_the_load(text: str) -> None:
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    assert not loaded(Source("prefill", "p0", [0], 4, [packed]), [0])
    assert loaded(Source("prefill", "p0", [0], 4, [encoded(cache())]), [0])


def test_caches_of_other_pieces_are_refused_though_their_form_is_the_same() -> None:
    for change in ({"offsets": [0] * 60_000}, {"nbytes": 2**63 - 1}):
        wrong = cache()
        wrong["layers"][1].update(change)
        with Lines() as lines:
            worker, source = decode(), Source("prefill", "p0", [0], 4, [encoded(wrong)])
            worker.start(Plan({"wrong": Load(source, [0], [0])}))
            assert worker.finished()[1] == {"wrong"}
        assert worker.take_errors() == {0}
        assert "KV caches differ: " in lines[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"region": 2}, "is in region 2 of 2"),
        ({"start": 1}, "ends at byte 1025 of a region of 1024 bytes"),
        ({"stride": 65}, "ends at byte 1039 of a region of 1024 bytes"),
        ({"stride": 2**63 - 1}, "of a region of 1024 bytes"),
        ({"offsets": [961]}, "ends at byte 1985 of a region of 1024 bytes"),
        ({"start": -1}, "the start of a layer is -1"),
    ],
    ids=str,
)
def test_layers_outside_of_their_region_are_refused(change: dict[str, Any], why: str) -> None:
    wrong = cache()
    wrong["layers"][1].update(change)
    peers = len(decode()._loads._peers)
    with Lines() as lines:
        decode().start(Plan({"wrong": Load(Source("x", "p0", [0], 4, [encoded(wrong)]), [0], [0])}))
    assert why in lines[0]
    assert decode().finished()[1] == {"wrong"}
    assert decode().take_errors() == {0}
    assert len(decode()._loads._peers) == peers


@pytest.mark.parametrize(
    "change",
    [
        {"regions": [""]},
        {"regions": ["AAAA"] * 2},
        {"hub": ""},
        {"hub": "AAAA"},
        {"expired": ""},
        {"num_blocks": BLOCKS + 1},
    ],
    ids=str,
)
def test_malformed_addresses_are_refused(change: dict[str, Any]) -> None:
    wrong = encoded({**cache(), **change})
    assert not loaded(Source("prefill", "p0", [0], 4, [wrong]), [0])


def test_list_of_expired_leases_of_another_size_is_refused() -> None:
    wrong = encoded({**cache(), "expired": cache()["regions"][0]})
    assert not loaded(Source("prefill", "p0", [0], 4, [wrong]), [0])


def test_another_description_of_a_worker_takes_nobodys_place() -> None:
    good = encoded(cache())
    assert loaded(Source("prefill", "p0", [0], 4, [good]), [0])
    peer = decode()._loads._peers[good]
    elsewhere = base64.b64encode(decode()._leases.address).decode()
    handles = cache()["regions"][::-1]
    for change in ({"hub": elsewhere}, {"regions": handles[:1]}, {"regions": handles}):
        loaded(Source("x", "p0", [0], 4, [encoded({**cache(), **change})]), [0])
    assert loaded(Source("prefill", "p0", [0], 4, [good]), [0])
    assert decode()._loads._peers[good] is peer


def forget() -> None:
    """Drop all peers, so that the next description of prefill is looked at."""
    for peer in decode()._loads._peers.values():
        peer.lost = True
    decode().finished()
    assert not decode()._loads._peers


ADDRESSES = ("hub", "regions", "expired")


def changed_elsewhere() -> st.SearchStrategy[Any]:
    """Draw changed descriptions with prefill's addresses: another hub might never answer."""
    kept = {name: cache()[name] for name in ADDRESSES}
    rest = {key: value for key, value in cache().items() if key not in ADDRESSES}
    return changed(rest).map(lambda found: {**found, **kept} if isinstance(found, dict) else found)


@st.composite
def changed_addresses(draw: st.DrawFn) -> Any:
    """Draw descriptions of prefill with changed addresses, or with addresses of damaged bytes."""
    fields = cache()
    name = draw(st.sampled_from(ADDRESSES))
    if draw(st.booleans()):
        return {**fields, name: draw(changed(fields[name]))}
    found = fields[name] if isinstance(fields[name], list) else [fields[name]]
    place = draw(st.integers(0, len(found) - 1))
    found[place] = base64.b64encode(draw(damaged(base64.b64decode(found[place])))).decode()
    return {**fields, name: found if isinstance(fields[name], list) else found[0]}


@fuzzed(
    100,
    fields=st.deferred(changed_elsewhere),
    there=st.lists(st.integers(0, 2**31 - 1) | st.integers(0, BLOCKS), min_size=1, max_size=8),
    name=st.text(max_size=9),
)
def test_worker_survives_any_description(fields: Any, there: list[int], name: str) -> None:
    forget()
    loaded(Source("prefill\n", name, there, 4, [encoded(fields)]), there)
    forget()
    assert loaded(Source("prefill", "p0", [3, 4], 8, [encoded(cache())]), [3, 4])
    for layer in decode()._caches.values():
        assert bool((layer[:2] == 7).all())


@fuzzed(60, fields=changed_addresses())
def test_worker_survives_any_address(fields: Any) -> None:
    forget()
    loaded(Source("prefill", "p0", [0], 4, [encoded(fields)]), [0])
    forget()
    assert loaded(Source("prefill", "p0", [3, 4], 8, [encoded(cache())]), [3, 4])


def test_messages_of_readers_without_a_lease_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vllm_leases, "_MOST_EARLY", 3)
    worker = _worker("listens", 0)
    for name in "abcd":
        worker._leases._on_read(_vllm_leases.digest_of(name), 0.0)
    assert list(worker._leases._early) == [_vllm_leases.digest_of(name) for name in "bcd"]
    worker.close()
