"""Two hosts, and a power cut at the second: the first reports the loss, and keeps no resources.

Runs on both nodes of a separate lab (tests/lab/run_tests), over RDMA or, with DLSLIME_RDMA=off,
over TCP. Rank 0 is on node 0, ranks 1 and 2 are on node 1. With rank 1 an operation is always under
way; with rank 2 only a receive, and no NIC can find out about a silent peer.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
import torch.distributed as dist

import dlslime_backend
from holdings import countable, held, settled

NODE = int(os.environ["NODE_RANK"])
LARGE = 4 << 20
RDMA = os.environ.get("DLSLIME_RDMA") != "off"
# A connection over RDMA is given up after some hundred milliseconds, and failover takes 3 s at most
# (run_tests). TCP's keep-alive finds a silent host gone after 25 s. Both took no longer.
SILENT_SECONDS = 60
BUSY_SECONDS = 15 if RDMA else SILENT_SECONDS


def _power_off() -> None:
    Path(os.environ["LAB_OUT"], f"node{NODE}.status").write_text("0\n", encoding="ascii")
    Path("/proc/sysrq-trigger").write_text("o", encoding="ascii")


def _exchange(peer: int) -> None:
    for nbytes in (8, LARGE):
        works = [dist.irecv(torch.empty(nbytes), peer), dist.isend(torch.empty(nbytes), peer)]
        for work in works:
            work.wait()


def _failure_of(work: dist.Work | None, since: float) -> tuple[str, float]:
    """Return the error raised by waiting, and the seconds since `since`."""
    assert work is not None
    try:
        work.wait()
    except RuntimeError as error:
        seconds = time.monotonic() - since
        print(f"after {seconds:.1f} s: {error}", flush=True)
        return str(error), seconds
    raise AssertionError("the peer has no power, and yet this is complete")


def _expect(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, f"no {part} in: {text}"


def _survive(store: dist.Store) -> None:
    for peer in (2, 1):
        _exchange(peer)
        assert dlslime_backend.explain(peer)["route"] == ("rdma" if RDMA else "tcp")
    silent = dist.irecv(torch.empty(LARGE), 2)
    start = time.monotonic()
    store.set("power", "off")
    # The receive waits for a message never sent; the send's message is never received.
    works = (dist.irecv(torch.empty(LARGE), 1), dist.isend(torch.empty(LARGE), 1))
    while not works[0].is_completed():  # messages sent so far may have arrived before the power cut
        dist.isend(torch.empty(2), 1)
        time.sleep(0.01)
    for work in works:
        text, seconds = _failure_of(work, start)
        _expect(text, "rank 1", "node1", *(["rxe0:1", "IBV_WC_RETRY_EXC_ERR"] if RDMA else []))
        assert seconds < BUSY_SECONDS
    text, seconds = _failure_of(silent, start)
    _expect(text, "rank 2", "node1")
    assert seconds < SILENT_SECONDS


def _live(rank: int) -> None:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 29511, 3, is_master=rank == 0)
    dist.init_process_group("dlslime", store=store, rank=rank, world_size=3)
    if rank == 0:
        _survive(store)
    else:
        _exchange(0)
        store.wait(["power"])
        if rank == 1:  # a second writer might have emptied the file when the power goes
            _power_off()
        time.sleep(60)  # no socket is closed
    dist.destroy_process_group()


def main() -> int:
    """Return 0 if all is as expected."""
    if NODE == 1:
        _live(1 if os.fork() else 2)
    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torch keeps a pipe
    before = held()
    _live(0)
    after = settled(before)
    assert countable(after) == countable(before), f"{before} before, {after} after"
    return 0


if __name__ == "__main__":
    sys.exit(main())
