"""Two hosts of which one loses its power in the middle: the other one says so, and keeps nothing.

Runs on both nodes of a lab of its own (tests/lab/run_tests).
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

NODE = int(os.environ["NODE_RANK"])
LARGE = 4 << 20


def _resources() -> dict[str, int]:
    """What the NICs' driver holds for this host's processes: queue pairs, memory regions, ..."""
    shown = subprocess.run(["rdma", "resource", "show"], check=True, capture_output=True, text=True)
    found: dict[str, int] = {}
    for kind, count in re.findall(r"\b(pd|cq|qp|mr|ctx) (\d+)", shown.stdout):
        found[kind] = found.get(kind, 0) + int(count)
    return found


def _power_off() -> None:
    Path(os.environ["LAB_OUT"], f"node{NODE}.status").write_text("0\n", encoding="ascii")
    Path("/proc/sysrq-trigger").write_text("o", encoding="ascii")
    time.sleep(60)  # nothing is closed


def _talk() -> list[str]:
    """Exchanges messages until node 1 is gone; returns what waiting for more of them raises."""
    works = [dist.irecv(torch.empty(8), 1 - NODE), dist.isend(torch.empty(8), 1 - NODE)]
    for work in works:
        work.wait()
    if NODE == 1:
        _power_off()
    # One waits for what will never be sent, the other is never taken.
    pending = [dist.irecv(torch.empty(LARGE), 1), dist.isend(torch.empty(LARGE), 1)]
    texts = []
    for work in pending:
        try:
            work.wait()
        except RuntimeError as error:
            texts.append(str(error))
    assert len(texts) == len(pending)
    return texts


def main() -> int:
    """Return 0 if all is as it should be."""
    before = _resources()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 29511, 2, is_master=NODE == 0)
    dist.init_process_group("dlslime", store=store, rank=NODE, world_size=2)
    for text in _talk():
        print(text)
        for part in ("rank 1", "node1", "rxe0:1", "IBV_WC_RETRY_EXC_ERR"):
            assert part in text, part
    dist.destroy_process_group()
    gc.collect()
    after = _resources()
    assert after == before, f"{before} before, {after} after"
    return 0


if __name__ == "__main__":
    sys.exit(main())
