"""dlslime_torch_dist_sendrecv_bench: torch.distributed's send and recv between two processes.

python bench_torch_dist_sendrecv.py --mode recv &
python bench_torch_dist_sendrecv.py --mode send
"""

import argparse
import os
from functools import partial

import dlslime._slime_torch  # noqa: F401  the import registers the backend
from bench import megabytes, print_table, seconds_of
from ends import expect, finish, numbers
from torch import Tensor
from torch import distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["send", "recv"], required=True)
    parser.add_argument("--master-port", type=int, default=6008)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << e for e in range(10, 30)])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--use-gpu", action="store_true")
    arguments = parser.parse_args()
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    device, rank = "cuda" if arguments.use_gpu else "cpu", int(arguments.mode == "recv")
    where = {"init_method": f"tcp://{host}:{arguments.master_port}", "rank": rank}
    dist.init_process_group(f"{device}:dlslime", world_size=2, **where)

    rows = []
    for size in arguments.sizes:
        tensor = numbers(size, rank).to(device)
        transfer = partial(iterate, tensor, rank, arguments.iterations)
        transfer()  # a warm-up of equal length
        seconds = seconds_of(device, transfer)
        expect(tensor, numbers(size, 0), f"{size} bytes at rank {rank}")
        total = size * arguments.iterations
        mean = f"{seconds * 1e3 / arguments.iterations:.3f}"
        rows.append([f"{size:,}", mean, megabytes(total, seconds)])
    if rank == 1:
        print_table(["Message Size (bytes)", "Avg Latency(ms)", "Bandwidth(MB/s)"], rows)
    dist.destroy_process_group()


def iterate(tensor: Tensor, rank: int, count: int) -> None:
    for _ in range(count):
        if rank == 0:
            dist.send(tensor, dst=1)
        else:
            dist.recv(tensor, src=0)


if __name__ == "__main__":
    finish(main)
