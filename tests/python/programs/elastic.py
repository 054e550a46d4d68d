"""A torchelastic job with a worker that dies after traffic, and restarts by torchrun.

``torchrun --max-restarts N ... elastic.py --backend NAME --record FILE --failing-lives N --death
exit|kill``: in the first N lives the last rank dies in the middle of the traffic while the other
ranks wait for the last rank; in the next life everything passes, and each rank appends a line to
FILE. Keys published by earlier lives are still in the store.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# A life takes seconds: a hanging life writes its stacks, and ends, before its launch is killed.
STACKS_SECONDS = 200


def traffic(life: int) -> None:
    """Send messages in a ring on two groups, then run a collective; all data is of the life."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for group in (dist.group.WORLD, dist.new_group()):
        for size in (1, 1000, 1_000_000):
            received = torch.empty(size)
            sent = torch.full((size,), life + rank / 10)
            ops = [
                dist.P2POp(dist.isend, sent, (rank + 1) % world, group),
                dist.P2POp(dist.irecv, received, (rank - 1) % world, group),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            torch.testing.assert_close(
                received, torch.full((size,), life + ((rank - 1) % world) / 10)
            )
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        assert total.item() == world


def die(how: str) -> None:
    """End the process without any goodbye."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(17)


def main() -> None:
    """Live once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--failing-lives", type=int, default=1)
    parser.add_argument("--death", choices=("exit", "kill"), default="exit")
    arguments = parser.parse_args()
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    faulthandler.dump_traceback_later(STACKS_SECONDS, exit=True)

    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    traffic(life)
    if life < arguments.failing_lives:
        if rank == world - 1:
            die(arguments.death)
        # Never comes: torchrun ends the survivors, unless the backend raises before.
        dist.recv(torch.empty(1), src=world - 1, tag=9)
    with arguments.record.open("a") as record:
        record.write(f"rank {rank} finished in life {life}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
