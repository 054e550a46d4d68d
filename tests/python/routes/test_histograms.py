"""Counts, sizes and times of a process's operations: `stats()["operations"]`."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from dlslime_backend import histograms
from harness import all_routes, dlslime_only, run_world, sync
from patterns import blank, pattern

pytestmark = dlslime_only

SIZES = [0, 1, 100, 8192, 8193, 100_000, 1 << 20, (1 << 20) + 1, 3_000_000]
KINDS = ["send", "receive", "read", "write"]


def _operations() -> dict[str, Any]:
    return dlslime_backend.stats()["operations"]


def _counts(kind: str) -> tuple[int, int, dict[str, int]]:
    """Return the count, the bytes, and the counts by size of the kind."""
    told = _operations()[kind]
    by_size = {size: times["count"] for size, times in told["microseconds"].items()}
    return told["count"], told["bytes"], by_size


NOTHING: tuple[int, int, dict[str, int]] = (0, 0, {})


def _messages(rank: int, size: int) -> None:
    assert list(_operations()) == KINDS
    assert [_counts(kind) for kind in KINDS] == [NOTHING] * 4
    for nbytes in SIZES:
        for _ in range(2):
            if rank == 0:
                dist.send(pattern(nbytes), 1)
            else:
                dist.recv(blank(nbytes + 5), None if nbytes == 100 else 0)  # more room than needed
    known = (2 * len(SIZES), 2 * sum(SIZES), {"to 8 KiB": 8, "to 1 MiB": 6, "above": 4})
    assert _counts("send") == (known if rank == 0 else NOTHING)
    assert _counts("receive") == (known if rank == 1 else NOTHING)
    sync("looked")
    for times in _operations()[KINDS[rank]]["microseconds"].values():
        assert 0 < times["p50"] <= times["p99"]
        assert times["mean"] > 0


@all_routes
def test_messages_are_counted_by_kind_and_size(env: dict[str, str]) -> None:
    run_world(_messages, 2, env=env, fresh=True)


def _transfers(rank: int, size: int) -> None:
    local = dlslime_backend.register(torch.zeros(3_000_000, dtype=torch.uint8))
    handles: list[Any] = [None, None]
    dist.all_gather_object(handles, local.export())
    remote = dlslime_backend.import_region(handles[1 - rank])
    peer = dlslime_backend.peer(1 - rank)
    if rank == 0:
        peer.read(local, remote).wait()
        peer.read(local, remote, [(0, 0, 100), (500, 500, 60)]).wait()
        peer.write(local, remote, [(0, 0, 10_000)]).wait()
        read = _counts("read")
        assert read == (2, 3_000_160, {"to 8 KiB": 1, "above": 1}), read
        peer.write_with_imm(local, remote, [(0, 0, 7)], imm=5).wait()
        assert _counts("write") == (2, 10_007, {"to 8 KiB": 1, "to 1 MiB": 1})
    else:
        assert peer.expect_imm().wait() is not None
    sync("done")
    if rank == 1:
        assert [_counts(kind) for kind in KINDS[2:]] == [NOTHING] * 2, "the peer's"
    assert [_counts(kind) for kind in KINDS[:2]] == [NOTHING] * 2, "no message was sent"


@all_routes
def test_transfers_are_counted_at_the_end_that_began_them(env: dict[str, str]) -> None:
    run_world(_transfers, 2, env=env, fresh=True)


def _failures(rank: int, size: int) -> None:
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="timed out"):
            dist.irecv(blank(5), 1).wait(datetime.timedelta(seconds=0.2))
        with pytest.raises((RuntimeError, ValueError)):
            dist.send(blank(5), 7)
    assert [_counts(kind) for kind in KINDS] == [NOTHING] * 4
    sync("looked")
    total = torch.ones(3)
    dist.all_reduce(total)
    dist.barrier()
    assert [_counts(kind) for kind in KINDS] == [NOTHING] * 4, "collectives are none"


def test_failures_and_collectives_are_not_counted(tmp_path: Any) -> None:
    run_world(_failures, 2, env={"DLSLIME_FLIGHT_DIR": str(tmp_path)}, fresh=True)


def _groups(rank: int, size: int) -> None:
    for _ in range(2):
        group = dist.new_group([0, 1])
        if rank == 0:
            dist.send(pattern(10), 1, group=group)
        else:
            dist.recv(blank(10), 0, group=group)
        sync(f"sent {_}")
        dist.destroy_process_group(group)
    assert _counts(KINDS[rank]) == (2, 20, {"to 8 KiB": 2})


def test_counts_are_of_the_process_and_outlive_its_groups() -> None:
    run_world(_groups, 2, fresh=True)


# --- the numbers of a histogram -------------------------------------------------------------------

# Of 1, 1, 2, and 100 in a bucket up to 104.
FOUR = {"count": 4, "sum": 104, "buckets": [(2, 2), (3, 1), (104, 1)]}
EMPTY: dict[str, Any] = {"count": 0, "sum": 0, "buckets": []}


def test_quantile_is_the_upper_end_of_the_values_bucket() -> None:
    shares = [0, 0.25, 0.5, 0.51, 0.75, 0.76, 1]
    assert [histograms.quantile(FOUR, share) for share in shares] == [2, 2, 2, 3, 3, 104, 104]
    assert histograms.quantile(EMPTY, 0.5) == 0


def test_cumulative_counts_whole_buckets_up_to_each_bound() -> None:
    assert histograms.cumulative(FOUR, [0, 1, 2, 2.5, 3, 103, 104, 1e9]) == [
        0,
        0,
        2,
        2,
        3,
        3,
        4,
        4,
    ]
    assert histograms.cumulative(FOUR, []) == []
    assert histograms.cumulative(EMPTY, [1, 2]) == [0, 0]


def test_summary_leaves_unused_sizes_out_and_tells_microseconds() -> None:
    times = {"count": 2, "sum": 9000, "buckets": [(4096, 1), (5120, 1)]}
    report = {"send": {"nanoseconds": [EMPTY, times, EMPTY], "bytes": FOUR}}
    assert histograms.summary(report) == {
        "send": {
            "count": 4,
            "bytes": 104,
            "microseconds": {
                "to 1 MiB": {"count": 2, "mean": 4.5, "p50": 4.096, "p99": 5.12},
            },
        }
    }
