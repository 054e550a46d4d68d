"""The two forms of agg_transfer_bench_spmd: half of the ranks transfer, each to or from a peer.

A form gives the API's calls; options, iterations and columns are common.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
from bench import exponents, print_table, seconds_of
from ends import expect, numbers, parser_of, settle
from torch import distributed as dist

COLUMNS = [
    "Transfer Engine",
    "#Channels",
    "Message Size (bytes)",
    "Batch Size",
    "Num Concurrency",
    "Total Transport (bytes)",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
]


class Calls(Protocol):
    """An endpoint of a generation of the API, with a region for each size of messages."""

    def register(self, tensors: list[torch.Tensor]) -> None: ...

    def info(self) -> Any: ...

    def connect(self, info: Any) -> None: ...

    def begin(self, opcode: str, number: int, nbytes: int, pieces: int) -> Any:
        """Transfer tensor `number`, `pieces` times at offset 0; the result has `wait`."""
        ...


def options(description: str | None, opcode: str, largest: int, warm_up: int | None) -> Any:
    """Return the benchmark's command line, with the defaults of a generation."""
    parser = parser_of(description)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--size", type=int, nargs="+", default=list(range(8, largest + 1)))
    parser.add_argument("--num-concurrency", type=int, default=16)
    parser.add_argument("--num-iteration", type=int, default=100)
    if warm_up is not None:
        parser.add_argument("--num-warmup-iteration", type=int, default=warm_up)
    parser.add_argument("--opcode", choices=["read", "write"], default=opcode)
    parser.add_argument("--with-imm-data", action="store_true", help="without effect")
    queue_pairs = int(os.environ.get("SLIME_QP_NUM", "1"))
    parser.add_argument("--qp-num", type=int, default=queue_pairs)
    parser.add_argument("--transfer-engine", choices=["dlslime"], default="dlslime")
    parser.add_argument("--nixl-port", type=int, default=5555)
    parser.add_argument("--save-csv", action="store_true")
    parser.add_argument("--csv-filename", default="./output.csv")
    arguments = parser.parse_args()
    arguments.num_warmup_iteration = getattr(arguments, "num_warmup_iteration", 0)
    return arguments


def run_ranks(arguments: argparse.Namespace, make: Callable[[int, int], Calls]) -> None:
    """Run the benchmark in a rank; `make` takes the rank and the number of queue pairs."""
    dist.init_process_group("gloo")
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    peer = (rank + half) % (2 * half)
    sizes = exponents(arguments.size)
    tensors = [numbers(size, rank).to(arguments.device) for size in sizes]
    calls = make(rank, arguments.qp_num)
    calls.register(tensors)
    infos: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(infos, calls.info())
    calls.connect(infos[peer])

    rows = []
    for number, size in enumerate(sizes):
        dist.barrier()
        seconds = measure(arguments, calls, number, size) if rank < half else 0.0
        dist.barrier()
        rows.append(row_of(arguments, size, seconds, half))
        source = max(rank, peer) if arguments.opcode == "read" else min(rank, peer)
        expect(tensors[number], numbers(size, source), f"{size} bytes of rank {rank}")
    if rank == 0:
        print_table(COLUMNS, rows, arguments.csv_filename if arguments.save_csv else None)
    dist.destroy_process_group()


def measure(arguments: argparse.Namespace, calls: Calls, number: int, size: int) -> float:
    """Return the seconds of all iterations, after a warm-up."""

    def iterate(count: int) -> None:
        for _ in range(count):
            under_way = [
                calls.begin(arguments.opcode, number, size, arguments.batch_size)
                for _ in range(arguments.num_concurrency)
            ]
            for transfer in under_way:
                transfer.wait()
            settle(arguments.device)

    iterate(arguments.num_warmup_iteration)
    return seconds_of(arguments.device, lambda: iterate(arguments.num_iteration))


def row_of(arguments: argparse.Namespace, size: int, seconds: float, half: int) -> list[str]:
    """Return a line of the table: rank 0's latency, and the sum of all initiators' bandwidths."""
    calls = arguments.num_iteration * arguments.num_concurrency
    total = size * arguments.batch_size * calls
    rates = [0.0] * dist.get_world_size()
    dist.all_gather_object(rates, total / 1e6 / seconds if seconds else 0.0)
    return [
        arguments.transfer_engine,
        str(half),
        f"{size:,}",
        f"{arguments.batch_size:,}",
        f"{arguments.num_concurrency:,}",
        f"{total:,}",
        f"{seconds * 1e3 / calls:.3f}",
        str(int(sum(rates))),
    ]
