"""Asks the installed torch for features that torch denies to third-party backends.

The questions go to torch's own backend `fake`, which carries out nothing: torch itself is the cause
of any refusal or wrong output.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore


def _monitored_barrier() -> str:
    try:
        dist.monitored_barrier()
    except ValueError as error:  # torch refuses by the backend's name, before a call
        return f"dist.monitored_barrier refuses every backend but gloo: {error}"
    except RuntimeError:
        pass  # refused by the backend itself
    return ""


def _ddp_logger() -> str:
    data = DistributedDataParallel(torch.nn.Linear(1, 1))._get_ddp_logging_data()
    shown = data.get("backend_name")
    return "" if shown == "fake" else f"DDP's logger calls every third-party backend {shown!r}"


def denials() -> dict[str, str]:
    """Return the reason for each denied feature by name; "" for granted features."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        return {"monitored_barrier": _monitored_barrier(), "ddp_logger": _ddp_logger()}
    finally:
        dist.destroy_process_group()
