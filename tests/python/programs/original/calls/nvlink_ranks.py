"""Generation C, and K by --keys: rank 0 reads from rank 1's GPU, and waits for the stream only.

torchrun --nproc-per-node 2 nvlink_ranks.py
"""

import os

from dlslime import NVLinkEndpoint
from ends import expect, filled, finish, parser_of, settle
from torch import cuda
from torch import distributed as dist

KEYS = 1 << 63 | 5, 1 << 63 | 9


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--keys", action="store_true", help="numbers as keys: generation K")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if arguments.device == "cuda":
        cuda.set_device(int(os.environ["LOCAL_RANK"]) % cuda.device_count())

    buffer = filled(16, rank, arguments.device)
    place = buffer.data_ptr(), buffer.storage_offset(), buffer.numel()
    endpoint = NVLinkEndpoint()
    if arguments.keys:
        endpoint.register_memory_region(KEYS[rank], *place)
    else:
        assert endpoint.register_memory_region(*place, name="buffer") == 0
    infos = [None, None]
    dist.all_gather_object(infos, endpoint.endpoint_info())
    endpoint.connect(infos[1 - rank])

    if rank == 0:
        mine, theirs = KEYS if arguments.keys else ("buffer", "buffer")
        endpoint.read([(mine, theirs, 8, 0, 8)], None)
        settle(arguments.device)
        expect(buffer, [1] * 8 + [0] * 8, "rank 0's memory")
    dist.barrier()
    if rank == 1:
        expect(buffer, [1] * 16, "rank 1's memory")
    dist.destroy_process_group()


if __name__ == "__main__":
    finish(main)
