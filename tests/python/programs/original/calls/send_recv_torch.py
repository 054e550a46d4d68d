"""Generations B, K and C: torch.distributed's batches of tagged messages, between two processes.

    python send_recv_torch.py --rank 0 &
    python send_recv_torch.py --rank 1

The variable RANK goes before --rank.
"""

import os

from dlslime import _slime_torch  # noqa: F401  the import registers the backend
from ends import expect, finish, numbers, parser_of
from torch import distributed as dist

MESSAGES, COUNT = 5, 1000


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--address", help="HOST:PORT of rank 0", default="127.0.0.1:29600")
    arguments = parser.parse_args()
    rank = int(os.environ.get("RANK", arguments.rank))
    where = {"init_method": f"tcp://{arguments.address}", "rank": rank, "world_size": 2}
    dist.init_process_group(f"{arguments.device}:dlslime", **where)

    mine = [numbers(COUNT, 10 * rank + tag).to(arguments.device) for tag in range(MESSAGES)]
    theirs = [numbers(COUNT, 99).to(arguments.device) for _ in mine]
    operations = []
    for tag in range(MESSAGES):
        operations.append(dist.P2POp(dist.isend, mine[tag], 1 - rank, tag=tag))
        operations.append(dist.P2POp(dist.irecv, theirs[tag], 1 - rank, tag=tag))
    for work in dist.batch_isend_irecv(operations):
        work.wait()

    print(theirs[0][:8])
    for tag in range(MESSAGES):
        expect(theirs[tag], numbers(COUNT, 10 * (1 - rank) + tag), f"what came with tag {tag}")
        expect(mine[tag], numbers(COUNT, 10 * rank + tag), f"what was sent with tag {tag}")
    dist.destroy_process_group()


if __name__ == "__main__":
    finish(main)
