"""Callbacks of one-sided transfers: each once, in one thread, after any end of the transfer."""

import collections
import logging
import os
import queue
import sys
import threading

import pytest
import torch.distributed as dist

import dlslime_backend
from harness import all_routes, await_key, dlslime_only, run_world, stopped, tell
from patterns import expect_pattern
from test_one_sided import Side, side_of

pytestmark = dlslime_only
SECONDS = 30.0


def _many(side: Side) -> None:
    called: queue.Queue[tuple[dlslime_backend.Transfer, str]] = queue.Queue()

    def on_done(transfer: dlslime_backend.Transfer) -> None:
        called.put((transfer, threading.current_thread().name))

    side.read().wait()  # starts the threads that the route needs
    before = len(os.listdir("/proc/self/task"))
    transfers = [side.read() for _ in range(1000)]
    for transfer in transfers:
        transfer.add_done_callback(on_done)
    ends = [called.get(timeout=SECONDS) for _ in transfers]
    assert collections.Counter(transfer for transfer, _ in ends) == dict.fromkeys(transfers, 1)
    assert {name for _, name in ends} == {"dlslime-callbacks"}
    assert len(os.listdir("/proc/self/task")) <= before + 1
    for transfer, _ in ends:
        assert transfer.done()
        assert transfer.wait(0) is None
    expect_pattern(side.memory, 1)
    # Ended long ago, and with two callbacks.
    transfers[0].add_done_callback(on_done)
    transfers[0].add_done_callback(on_done)
    assert [called.get(timeout=SECONDS)[0] for _ in range(2)] == transfers[:1] * 2
    assert called.empty()


def _failing(side: Side) -> None:
    called: queue.Queue[dlslime_backend.Transfer] = queue.Queue()
    logged: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.Handler()
    handler.emit = logged.put  # type: ignore[method-assign]
    logging.getLogger("dlslime").addHandler(handler)

    def raises(_: dlslime_backend.Transfer) -> None:
        raise RuntimeError("a callback on purpose")

    def leaves(_: dlslime_backend.Transfer) -> None:
        sys.exit("a callback leaves")

    side.read().add_done_callback(leaves)
    assert "a callback leaves" in str(logged.get(timeout=SECONDS).exc_info)
    side.read().add_done_callback(raises)
    assert "a callback on purpose" in str(logged.get(timeout=SECONDS).exc_info)
    with stopped(1):
        never = side.peer.expect_imm()
        never.add_done_callback(called.put)
        never.cancel()
        assert called.get(timeout=SECONDS) is never  # the thread lives on
    with pytest.raises(dist.DistBackendError):
        never.wait()


def _world(rank: int, size: int, fails: bool) -> None:
    side = side_of(rank)
    if rank == 0:
        (_failing if fails else _many)(side)
        tell("over")
    else:
        await_key("over")


@all_routes
@pytest.mark.parametrize("fails", [False, True], ids=["well", "badly"])
def test_callback_is_called_once_it_ends(env: dict[str, str], fails: bool) -> None:
    run_world(_world, 2, fails, env=env)
