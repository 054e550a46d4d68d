"""The command line of the C++ transfer_bench: blocks are read for some seconds, many at a time.

python bench_transfer_blocks.py --mode target &
python bench_transfer_blocks.py --mode initiator
"""

import argparse
import time
from typing import Any

import dlslime
from ends import expect, finish, meet_by_two, numbers, parser_of
from torch import Tensor


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--mode", choices=["initiator", "target"], required=True)
    parser.add_argument("--device_name", default="")
    parser.add_argument("--ib_port", type=int, default=1)
    parser.add_argument("--link_type", default="RoCE")
    parser.add_argument("--initiator_endpoint", default="127.0.0.1:6007")
    parser.add_argument("--target_endpoint", default="127.0.0.1:6006")
    parser.add_argument("--buffer_size", type=int, default=160 * 2048000)
    parser.add_argument("--block_size", type=int, default=2048000)
    parser.add_argument("--batch_size", type=int, default=160)
    parser.add_argument("--duration", type=float, default=10)
    parser.add_argument("--concurrent_num", type=int, default=20)
    return parser.parse_args()


def batch(arguments: argparse.Namespace, handle: int, remote: int) -> list[tuple[int, ...]]:
    """Return the blocks of a trip, one behind the other."""
    offsets = range(0, arguments.batch_size * arguments.block_size, arguments.block_size)
    return [(handle, remote, offset, offset, arguments.block_size) for offset in offsets]


def read(arguments: argparse.Namespace, endpoint: Any, pieces: list[tuple[int, ...]]) -> None:
    """Read for the duration, and print the results."""
    start, trips = time.perf_counter(), 0
    while time.perf_counter() - start < arguments.duration:
        under_way = [endpoint.read(pieces) for _ in range(arguments.concurrent_num)]
        for future in under_way:
            assert future.wait() == 0
        trips += len(under_way)
    seconds = time.perf_counter() - start
    mebibytes = trips * arguments.batch_size * arguments.block_size / (1 << 20)
    print(f"Total trips: {trips}")
    print(f"Total transferred: {mebibytes:.0f} MiB")
    print(f"Average Latency: {seconds * 1e3 / trips:.3f} ms/trip")
    print(f"Throughput: {mebibytes / seconds:.0f} MiB/s")


def main() -> None:
    arguments = parse()
    initiates = arguments.mode == "initiator"
    buffer: Tensor = numbers(arguments.buffer_size, int(initiates)).to(arguments.device)
    name = arguments.device_name or dlslime.available_nic()[0]
    endpoint = dlslime.RDMAEndpoint(name, arguments.ib_port, arguments.link_type)
    handle = endpoint.register_memory_region("buffer", buffer.data_ptr(), 0, buffer.nbytes)
    addresses = [arguments.initiator_endpoint, arguments.target_endpoint]
    line = meet_by_two(*(addresses if initiates else reversed(addresses)))
    info = line.exchange(endpoint.endpoint_info())
    remote = endpoint.register_remote_memory_region("buffer", info["mr_info"]["buffer"])
    endpoint.connect(info)

    wanted = numbers(arguments.buffer_size)
    if initiates:
        pieces = batch(arguments, handle, remote)
        read(arguments, endpoint, pieces)
        end = max(offset for _, _, _, offset, _ in pieces) + arguments.block_size
        wanted[end:] = numbers(arguments.buffer_size, 1)[end:]
    line.exchange("over")
    expect(buffer, wanted, f"the memory of the {arguments.mode}")


if __name__ == "__main__":
    finish(main)
