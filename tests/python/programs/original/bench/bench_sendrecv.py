"""sendrecv_bench of generation B: torchrun --nproc-per-node 2 bench_sendrecv.py."""

import os
import time
from typing import Any

import dlslime
from bench import megabytes, print_table
from ends import expect, finish, numbers, parser_of, settle
from torch import distributed as dist

COLUMNS = ["Message Size (bytes)", "Num Concurrency", "Avg Latency(ms)", "Bandwidth(MB/s)"]


def exchange(endpoint: Any, rank: int, keys: list[str], nbytes: int) -> None:
    """Send as many messages at a time as `keys` has regions, from rank 0 to rank 1."""
    call = endpoint.send_batch if rank == 0 else endpoint.recv_batch
    under_way = []
    for key in keys:
        piece = dlslime.Assignment(mr_key=key, target_offset=0, source_offset=0, length=nbytes)
        under_way.append(call([piece], async_op=True))
    for future in under_way:
        assert future.wait() is None


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[2 << e for e in range(8, 25)])
    parser.add_argument("--num-concurrency", type=int, default=8)
    parser.add_argument("--num-iteration", type=int, default=100, help="not of the original")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    nics = dlslime.available_nic()
    rows = []
    for elements in arguments.size:
        nbytes = 4 * elements
        endpoint = dlslime.RDMAEndpoint(nics[int(os.environ["LOCAL_RANK"]) % len(nics)])
        tensors = [
            numbers(nbytes, 2 * number + rank).to(arguments.device)
            for number in range(arguments.num_concurrency)
        ]
        keys = [str(number) for number in range(len(tensors))]
        for key, tensor in zip(keys, tensors):
            endpoint.register_memory_region(key, tensor.data_ptr(), 0, nbytes)
        infos: list[Any] = [None, None]
        dist.all_gather_object(infos, endpoint.endpoint_info)
        endpoint.connect(infos[1 - rank])
        dist.barrier()
        start = time.perf_counter()
        for _ in range(arguments.num_iteration):
            exchange(endpoint, rank, keys, nbytes)
        settle(arguments.device)
        seconds = time.perf_counter() - start
        for number, tensor in enumerate(tensors):
            expect(tensor, numbers(nbytes, 2 * number), f"message {number} at rank {rank}")
        mean = f"{seconds * 1e3 / arguments.num_concurrency:.3f}"
        total = nbytes * arguments.num_concurrency * arguments.num_iteration
        rows.append([f"{nbytes:,}", len(keys), mean, megabytes(total, seconds)])
    if rank == 0:
        print_table(COLUMNS, rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    finish(main)
