"""Routes: the choice for a pair, the reports on the choice, and rules of the fallback."""

import json
import time

import pytest
import torch
import torch.distributed as dist

from harness import BACKEND, dlslime_only, init_group, run_world, sync
from patterns import blank, expect_pattern, pattern
from test_groups import exchange

if BACKEND == "dlslime":
    import dlslime_backend

pytestmark = dlslime_only

ROUTES = ["shm", "rdma", "tcp", "gloo"]  # the best first
FORCED = ROUTES[2:]  # no fallback if asked for
EXPECTED = {
    "shm": ({}, "shm", "cma"),
    "staged": ({"DLSLIME_CMA": "off"}, "shm", "staged"),
    "tcp": ({"DLSLIME_ROUTE": "tcp"}, "tcp", "frames"),
    "gloo": ({"DLSLIME_ROUTE": "gloo"}, "gloo", "frames"),
}


def _explain(rank: int, size: int) -> dict:
    return dlslime_backend.explain(1 - rank)  # connects


@pytest.mark.parametrize("name", EXPECTED)
def test_explain_tells_route_and_way_of_copying(name: str) -> None:
    env, route, copy = EXPECTED[name]
    for rank, told in enumerate(run_world(_explain, 2, env=env, fresh=True)):
        assert set(told) >= {"peer", "route", "copy", "rejected", "text"}
        assert told["peer"] == 1 - rank
        assert (told["route"], told["copy"]) == (route, copy)
        assert route in told["text"]
        assert f"rank {1 - rank}" in told["text"]
        assert all(rejected["reason"] for rejected in told["rejected"])
        assert [rejected["route"] for rejected in told["rejected"]] == ROUTES[: ROUTES.index(route)]


def test_explain_names_the_rejected_route_and_its_reason() -> None:
    told = run_world(_explain, 2, env={"DLSLIME_ROUTE": "tcp"}, fresh=True)[0]
    assert "shm" in [rejected["route"] for rejected in told["rejected"]]
    assert "route=tcp" in told["text"]


def _explain_a_rank_that_left(rank: int, size: int) -> None:
    assert dlslime_backend.explain(1 - rank)["route"] == "shm"
    sync("explained")
    if rank == 1:
        dist.destroy_process_group()
        return
    for _ in range(20):  # rank 1's process leaves, and the connection is taken down
        assert dlslime_backend.explain(1)["route"] == "shm"
        time.sleep(0.02)


def test_explain_still_tells_how_a_rank_was_reached_that_has_left() -> None:
    run_world(_explain_a_rank_that_left, 2, fresh=True, sync_end=False)


def _explain_myself(rank: int, size: int) -> None:
    told = dlslime_backend.explain(rank)
    assert told["route"] == "self"
    assert told["copy"] == "memcpy"
    for bad in (-1, size, 99):
        with pytest.raises((ValueError, RuntimeError), match="(?i)rank"):
            dlslime_backend.explain(bad)


def test_explain_of_oneself_and_of_bad_ranks() -> None:
    run_world(_explain_myself, 2)


def _explain_in_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([0, 2])
    if rank != 1:
        told = dlslime_backend.explain(1 - rank // 2, group)
        assert told["route"] == "shm"


def test_explain_takes_the_groups_own_ranks() -> None:
    run_world(_explain_in_subgroup, 3)


def _count(rank: int, size: int) -> None:
    other = 1 - rank
    if rank == 0:
        for nbytes in (8, 100, 0, 2_000_000):
            dist.send(pattern(nbytes, 1), 1)
        pending = dist.irecv(blank(4), 1, tag=5)
        peer = dlslime_backend.stats()["peers"][1]
        assert peer["sent_messages"] == 4
        assert peer["sent_bytes"] == 2_000_108
        assert peer["eager_messages"] == 3
        assert peer["rendezvous_messages"] == 1
        assert peer["pending_receives"] == 1
        assert peer["pending_sends"] == 0
        sync("counted")
        pending.wait()
        assert dlslime_backend.stats()["peers"][1]["pending_receives"] == 0
    else:
        for nbytes in (8, 100, 0, 2_000_000):
            received = blank(nbytes)
            dist.recv(received, 0)
            expect_pattern(received, 1)
        peer = dlslime_backend.stats()["peers"][other]
        assert peer["received_messages"] == 4
        assert peer["received_bytes"] == 2_000_108
        assert peer["sent_messages"] == 0
        sync("counted")
        dist.send(pattern(4), 0, tag=5)


@pytest.mark.parametrize("name", EXPECTED)
def test_stats_count_messages_and_bytes_of_each_peer(name: str) -> None:
    run_world(_count, 2, env=EXPECTED[name][0], fresh=True)


def _stats_of_groups(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    told = dlslime_backend.stats()
    assert (told["rank"], told["size"]) == (rank, size)
    assert told["peers"] == {}, "no peer was used yet"
    if rank < 2:
        exchange(group)
        told = dlslime_backend.stats(group)
        assert (told["rank"], told["size"]) == (rank, 2)
        assert list(told["peers"]) == [1 - rank]
        assert told["peers"][1 - rank]["route"] == "shm"
        assert told["process"]["connections"] >= 1
        assert told["process"]["threads"] >= 3, "this one, progress and wire-up"
    assert told["process"]["groups"] == 2 if rank < 2 else 1
    json.dumps(told)  # plain values: fit for a log


def test_stats_of_a_group_hold_the_peers_that_were_used() -> None:
    run_world(_stats_of_groups, 3, fresh=True)


def _foreign_group(rank: int, size: int) -> None:
    group = dist.new_group(backend="gloo")
    with pytest.raises((ValueError, RuntimeError, TypeError), match="(?i)dlslime"):
        dlslime_backend.stats(group)
    with pytest.raises((ValueError, RuntimeError, TypeError), match="(?i)dlslime"):
        dlslime_backend.explain(0, group)


def test_stats_of_a_group_of_another_backend_are_refused() -> None:
    run_world(_foreign_group, 2)


# Rank 1 behaves as if unable to share memory with any rank: the pair has to fall back.
NO_SHM = [{"DLSLIME_LOG": "warn"}, {"DLSLIME_LOG": "warn", "DLSLIME_SHM": "off"}]


def _with_fallback(*words: str) -> list[dict[str, str]]:
    return [{**e, "DLSLIME_FALLBACK": w} for e, w in zip(NO_SHM, words, strict=True)]


def _fall_back(rank: int, size: int) -> str:
    exchange(None, 1, 100)
    exchange(None, 2, 300_000)
    exchange(dist.new_group(), 3, 10)
    return dlslime_backend.explain(1 - rank)["route"]


def test_fallback_warns_once_with_the_reason() -> None:
    results = run_world(_fall_back, 2, env=NO_SHM, fresh=True, with_output=True)
    assert [route for route, _ in results] == ["tcp", "tcp"]
    told = 0
    for rank, (_, output) in enumerate(results):
        lines = [line for line in output.splitlines() if "go over TCP" in line]
        assert len(lines) <= 1, output
        for line in lines:
            told += 1
            assert f"rank {1 - rank}" in line
            assert "DLSLIME_SHM" in line, "the reason"
    assert told, "the rank that starts the connection warns"


def _forbidden(rank: int, size: int) -> None:
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="(?i)fallback|falling back|forbid") as caught:
        dist.isend(torch.ones(1), 1 - rank).wait()
    assert "DLSLIME_SHM" in str(caught.value), "the reason"
    assert f"rank {1 - rank}" in str(caught.value)
    assert time.monotonic() - start < 10, "at once, not at the time-out"
    sync("refused")


def test_forbidden_fallback_raises_with_the_reason() -> None:
    run_world(_forbidden, 2, env=_with_fallback("forbid", "forbid"), fresh=True)


def _one_forbids(rank: int, size: int, forbidding: int) -> None:
    """The other rank starts the connection, and would take TCP."""
    if rank != forbidding:
        work = dist.isend(torch.ones(1), forbidding)
        sync("posted")
        sync("refused")
        del work
    else:
        sync("posted")
        with pytest.raises(RuntimeError, match="(?i)fallback|falling back|forbid"):
            dist.recv(torch.ones(1), 1 - rank)
        sync("refused")


@pytest.mark.parametrize("forbidding", [0, 1])
def test_fallback_forbidden_by_one_end_is_refused(forbidding: int) -> None:
    words = ("forbid", "allow") if forbidding == 0 else ("allow", "forbid")
    run_world(_one_forbids, 2, forbidding, env=_with_fallback(*words), fresh=True)


def _allowed(rank: int, size: int) -> None:
    exchange(None, 1)


def test_allowed_fallback_says_nothing() -> None:
    env = _with_fallback("allow", "allow")
    for _, output in run_world(_allowed, 2, env=env, fresh=True, with_output=True):
        assert "go by" not in output


def _three_ranks(rank: int, size: int) -> dict[int, str]:
    exchange(None, 1, 300_000)
    return {r: dlslime_backend.explain(r)["route"] for r in range(size) if r != rank}


def test_only_the_pairs_without_shared_memory_fall_back() -> None:
    env = [{}, {"DLSLIME_SHM": "off"}, {}]
    env = [{**e, "DLSLIME_FALLBACK": "allow"} for e in env]
    routes = run_world(_three_ranks, 3, env=env, fresh=True)
    assert routes == [{1: "tcp", 2: "shm"}, {0: "tcp", 2: "tcp"}, {0: "shm", 1: "tcp"}]


@pytest.mark.parametrize("route", FORCED)
def test_forced_slow_route_is_no_fallback(route: str) -> None:
    """A route asked for is taken without a warning, also with fallbacks forbidden."""
    env = {"DLSLIME_ROUTE": route, "DLSLIME_FALLBACK": "forbid", "DLSLIME_LOG": "warn"}
    for _, output in run_world(_allowed, 2, env=env, fresh=True, with_output=True):
        assert "go by" not in output


def _options(rank: int, size: int, route: str, expected: str) -> None:
    import copy
    import datetime

    options = dlslime_backend.Options(
        timeout=datetime.timedelta(seconds=20), route=route, fallback="allow"
    )
    assert options.route == route
    assert options.fallback == "allow"
    init_group(pg_options=options)
    exchange(None, 1, 300_000)
    assert dlslime_backend.explain(1 - rank)["route"] == expected
    told = dist.group.WORLD._get_backend(torch.device("cpu")).options
    assert told.route == route
    assert told.fallback == "allow"
    assert told.backend == "dlslime"
    twin = copy.deepcopy(told)
    assert (twin.route, twin.fallback, twin._timeout) == (told.route, told.fallback, told._timeout)
    exchange(dist.new_group(pg_options=options), 2)


@pytest.mark.parametrize(
    ("route", "expected"), [("auto", "shm"), ("shm", "shm"), ("tcp", "tcp"), ("gloo", "gloo")]
)
def test_options_choose_the_route_of_a_group(route: str, expected: str) -> None:
    run_world(_options, 2, route, expected, init=False, fresh=True)


def _groups_of_all_routes(rank: int, size: int) -> None:
    exchange(None, 1, 300_000)
    for route in FORCED:
        slow = dist.new_group(pg_options=dlslime_backend.Options(route=route))
        exchange(slow, 2, 300_000)
        assert dlslime_backend.explain(1 - rank, slow)["route"] == route
    assert dlslime_backend.explain(1 - rank)["route"] == "shm"


def test_groups_of_different_routes_over_the_same_ranks() -> None:
    run_world(_groups_of_all_routes, 2, fresh=True)


def _timeout_of_options(rank: int, size: int) -> None:
    import datetime

    options = dlslime_backend.Options(timeout=datetime.timedelta(seconds=0.3))
    init_group(timeout=None, pg_options=options)
    if rank == 0:
        # By the receive, or by the connection if not made yet.
        with pytest.raises(dist.DistBackendError, match=r"300 ms|time-out of the group"):
            dist.recv(blank(4), 1)
    sync("timed out")


def test_timeout_of_options_is_the_groups() -> None:
    run_world(_timeout_of_options, 2, init=False)


def _one_options_object_for_two_groups(rank: int, size: int, route: str) -> None:
    options = dlslime_backend.Options(route=route)
    groups = [dist.new_group(pg_options=options), dist.new_group([1, 0], pg_options=options)]
    for group in groups:
        exchange(group, 1)
    told = [group._get_backend(torch.device("cpu")).options for group in groups]
    assert [t.group_name for t in told] == [group.group_name for group in groups]
    assert [t.route for t in told] == [route, route]


@pytest.mark.parametrize("route", FORCED)
def test_one_options_object_may_serve_two_groups(route: str) -> None:
    run_world(_one_options_object_for_two_groups, 2, route)
