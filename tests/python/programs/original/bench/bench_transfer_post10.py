"""transfer_bench of generation B: two processes, each with an address; rank 0 transfers.

python bench_transfer_post10.py --rank 1 &
python bench_transfer_post10.py --rank 0
"""

import argparse
import os
from datetime import timedelta
from typing import Any

import dlslime
from bench import exponents, megabytes, print_table
from ends import Line, expect, finish, meet_by_two, numbers, parser_of
from torch import Tensor

ITERATIONS = 100
COLUMNS = [
    "Message Size (bytes)",
    "Total Transport (bytes)",
    "Target Affinity",
    "Initiator Affinity",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
]


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rank", type=int, choices=[0, 1], required=True)
    parser.add_argument("--size", type=int, nargs="+", default=list(range(8, 25)))
    parser.add_argument("--target-endpoint", default="127.0.0.1:6006")
    parser.add_argument("--initiator-endpoint", default="127.0.0.1:6007")
    parser.add_argument("--target-affi", type=int, default=0)
    parser.add_argument("--initiator-affi", type=int, default=1)
    parser.add_argument("--num-concurrency", type=int, default=16)
    parser.add_argument("--opcode", choices=["read", "write"], default="read")
    parser.add_argument("--qp-num", type=int, default=int(os.environ.get("SLIME_QP_NUM", "1")))
    parser.add_argument("--with-imm-data", action="store_true")
    parser.add_argument("--save-csv", action="store_true")
    parser.add_argument("--csv-filename", default="./output.csv")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="not of the original")
    return parser.parse_args()


def connect(arguments: argparse.Namespace, tensors: list[Tensor]) -> tuple[Any, Line]:
    """Make the rank's endpoint, with a region for each tensor."""
    addresses = [arguments.initiator_endpoint, arguments.target_endpoint]
    mine, theirs = addresses if arguments.rank == 0 else reversed(addresses)
    nics = dlslime.available_nic()
    affinity = arguments.target_affi if arguments.rank else arguments.initiator_affi
    endpoint = dlslime.RDMAEndpoint(nics[affinity % len(nics)], qp_num=arguments.qp_num)
    for number, tensor in enumerate(tensors):
        place = tensor.data_ptr(), tensor.storage_offset(), tensor.nbytes
        endpoint.register_memory_region(f"size {number}", *place)
    line = meet_by_two(mine, theirs)
    endpoint.connect(line.exchange(endpoint.endpoint_info))
    return endpoint, line


def transfer(arguments: argparse.Namespace, endpoint: Any, key: str, nbytes: int) -> timedelta:
    """Run an iteration; return the sum of the latencies."""
    batch = [dlslime.Assignment(mr_key=key, target_offset=0, source_offset=0, length=nbytes)]
    under_way = []
    for _ in range(arguments.num_concurrency):
        if arguments.opcode == "read":
            under_way.append(endpoint.read_batch(batch, async_op=True))
        elif arguments.with_imm_data:
            call = endpoint.write_batch_with_imm_data
            under_way.append(call(batch, qpi=-1, imm_data=1, async_op=True))
        else:
            under_way.append(endpoint.write_batch(batch, async_op=True))
    for future in under_way:
        assert future.wait() is None
    return sum((future.latency() for future in under_way), timedelta())


def receive_numbers(arguments: argparse.Namespace, endpoint: Any, key: str) -> None:
    """Post the target's receives, which writes with a number use up."""
    piece = dlslime.Assignment(mr_key=key, target_offset=0, source_offset=0, length=4)
    count = arguments.num_concurrency * arguments.iterations
    for future in [endpoint.recv_batch([piece], async_op=True) for _ in range(count)]:
        assert future.wait() is None


def main() -> None:
    arguments = parse()
    sizes = exponents(arguments.size)
    tensors = [numbers(size, arguments.rank).to(arguments.device) for size in sizes]
    endpoint, line = connect(arguments, tensors)
    rows = []
    for number, size in enumerate(sizes):
        key = f"size {number}"
        if arguments.rank == 0:
            rounds = range(arguments.iterations)
            sum_ = sum((transfer(arguments, endpoint, key, size) for _ in rounds), timedelta())
            total = size * arguments.num_concurrency
            seconds = max(sum_.total_seconds() / arguments.iterations, 1e-9)
            affinities = arguments.target_affi, arguments.initiator_affi
            mean = f"{seconds * 1e3 / arguments.num_concurrency:.3f}"
            rows.append([f"{size:,}", f"{total:,}", *affinities, mean, megabytes(total, seconds)])
        elif arguments.with_imm_data and arguments.opcode == "write":
            receive_numbers(arguments, endpoint, key)
        line.exchange(f"{size} bytes are over")
        source = 1 if arguments.opcode == "read" else 0
        expect(tensors[number], numbers(size, source), f"{size} bytes of rank {arguments.rank}")
    if arguments.rank == 0:
        print_table(COLUMNS, rows, arguments.csv_filename if arguments.save_csv else None)


if __name__ == "__main__":
    finish(main)
