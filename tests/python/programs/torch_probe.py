"""Asks the installed torch which of its features it denies every backend that is not its own.

The questions go to torch's own backend `fake`, which carries out nothing: what it is refused, or
shown wrongly, is torch's doing and not a backend's.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore


def _monitored_barrier() -> str:
    try:
        dist.monitored_barrier()
    except ValueError as error:  # by the backend's name, before it is called
        return f"dist.monitored_barrier refuses every backend but gloo: {error}"
    except RuntimeError:
        pass  # asked, the backend said no
    return ""


def _ddp_logger() -> str:
    data = DistributedDataParallel(torch.nn.Linear(1, 1))._get_ddp_logging_data()
    shown = data.get("backend_name")
    return "" if shown == "fake" else f"DDP's logger calls every third-party backend {shown!r}"


def denials() -> dict[str, str]:
    """Returns why, by the name of the feature; "" for what torch grants."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        return {"monitored_barrier": _monitored_barrier(), "ddp_logger": _ddp_logger()}
    finally:
        dist.destroy_process_group()
