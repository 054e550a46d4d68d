r"""Two NICs against each alone, on links shaped by `tc`: the sum is the most possible.

    tests/lab/lab.py --nics 2 --out /tmp/lab -- sh -c '.venv/bin/torchrun --nnodes 2 \
        --nproc-per-node 1 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 29500 \
        benchmarks/rails.py --json $LAB_OUT/rails.json'

The program shapes vec0 and vec1 and uses rxe0 and rxe1, so only the lab can run the program. The
exit status is 0 for any rates, 1 if wrong data arrived.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

import torch
import torch.distributed as dist

from measuring import report
from measuring.report import Figure

SIZE = 32 << 20
NICS = {"first": "rxe0", "second": "rxe1", "both": "rxe"}
# Bits per second of each link: together less than the software NICs can do.
LINKS = {"1:1": ("400mbit", "400mbit"), "2:1": ("480mbit", "240mbit")}
SHARE = 0.85  # of the sum


def shape(rates: tuple[str, str] | None) -> None:
    """Limit both links of the node, or neither."""
    for device, rate in zip(("vec0", "vec1"), rates or ("", ""), strict=True):
        command = ["tc", "qdisc", "replace" if rate else "del", "dev", device, "root"]
        if rate:
            command += ["netem", "rate", rate, "limit", "20000"]
        subprocess.run(command, check=True)


def measure(nics: str, rounds: int) -> list[float]:
    """Send from rank 1 to rank 0; return the bytes per second of each round, at rank 0."""
    os.environ["DLSLIME_NICS"] = nics
    dist.init_process_group("dlslime")
    rank = dist.get_rank()
    tensor = torch.full((SIZE,), rank, dtype=torch.uint8)
    rates = []
    for number in range(-1, rounds):  # the first round is for pages and registrations
        if rank == 0:
            work = dist.irecv(tensor, 1)
            dist.send(torch.zeros(1), 1)
            start = time.perf_counter()
            work.wait()
            seconds = time.perf_counter() - start
            if number >= 0:
                rates.append(SIZE / seconds)
            if int(tensor[0]) != 1 or int(tensor[-1]) != 1:
                sys.exit(1)
            tensor.zero_()
        else:
            dist.recv(torch.zeros(1), 0)
            dist.send(tensor, 0)
    dist.destroy_process_group()
    return rates


def figure_of(link: str, rates: dict[str, list[float]]) -> Figure:
    """Return the share that both NICs reach of the sum of single NICs, in MB/s."""
    medians = {name: median(values) / 1e6 for name, values in rates.items()}
    alone = medians["first"] + medians["second"]
    both = medians["both"]
    samples = {name: report.summary(values, 1e-6) for name, values in rates.items()}
    target = report.at_least(both / alone, SHARE)
    return Figure("rails", f"two NICs, {link}", "MB/s", both, alone, **target, details=samples)


def main() -> int:
    """Measure, print and write."""
    options = report.lab_options(__doc__, rounds=3)
    torch.set_num_threads(1)
    rates: dict[str, dict[str, list[float]]] = {link: {n: [] for n in NICS} for link in LINKS}
    for _ in range(options.rounds):
        for link, shapes in LINKS.items():
            shape(shapes)
            for name, nics in NICS.items():
                rates[link][name] += measure(nics, 2)
            shape(None)
    if int(os.environ["RANK"]) == 0:
        figures = [figure_of(link, of) for link, of in rates.items()]
        for figure in figures:
            print(report.line(figure), flush=True)
        report.save(options.json, report.environment(), figures, [])
        print(f"written to {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
