"""The two benchmarks of generation C with both endpoints in one process, by one thread.

python bench_endpoint.py io         endpoint_io_bench: writes with a number
python bench_endpoint.py sendrecv   endpoint_sendrecv_bench: messages
"""

import argparse
from collections.abc import Callable

import dlslime
from bench import print_table, seconds_of
from ends import filled, finish, numbers, parser_of, settle
from torch import Tensor, equal

WARM_UP = 5
# The least message, and the original's default limit of iterations.
KINDS = {"io": (128, 200), "sendrecv": (512, 128)}


class Loop:
    """Two connected endpoints."""

    def __init__(self, num_qp: int, source: Tensor, destination: Tensor) -> None:
        nics = dlslime.available_nic()
        self.source, self.destination = source, destination
        self.initiator = dlslime.RDMAEndpoint(nics[0], num_qp=num_qp)
        self.target = dlslime.RDMAEndpoint(nics[-1], num_qp=num_qp)
        place = source.data_ptr(), 0, source.nbytes
        self.local = self.initiator.register_memory_region("source", *place)
        place = destination.data_ptr(), 0, destination.nbytes
        self.target.register_memory_region("destination", *place)
        theirs = self.target.endpoint_info()
        region = theirs["mr_info"]["destination"]
        self.remote = self.initiator.register_remote_memory_region("destination", region)
        self.initiator.connect(theirs)
        self.target.connect(self.initiator.endpoint_info())

    def io(self, nbytes: int) -> None:
        """Write with a number, and receive the number."""
        told = self.target.imm_recv(None)
        piece = self.local, self.remote, 0, 0, nbytes
        written = self.initiator.write_with_imm([piece], 7, None)
        assert written.wait() == 0
        assert told.wait() == 0
        assert told.imm_data() == 7

    def sendrecv(self, nbytes: int) -> None:
        """Send and receive a message."""
        received = self.target.recv((self.destination.data_ptr(), 0, nbytes), None)
        sent = self.initiator.send((self.source.data_ptr(), 0, nbytes), None)
        assert sent.wait() == 0
        assert received.wait() == 0


def row_of(arguments: argparse.Namespace, nbytes: int) -> list[str]:
    """Measure a size of message."""
    content = numbers(nbytes)
    destination = filled(nbytes, 0, arguments.device)
    loop = Loop(arguments.qp, content.to(arguments.device), destination)
    step: Callable[[int], None] = getattr(loop, arguments.kind)
    for _ in range(WARM_UP):
        step(nbytes)
    destination.fill_(0)
    settle(arguments.device)

    def iterate() -> None:
        for _ in range(arguments.iters):
            step(nbytes)

    seconds = seconds_of(arguments.device, iterate) / arguments.iters
    good = equal(destination.cpu(), content)
    loop.initiator.shutdown()
    loop.target.shutdown()
    assert good, f"{nbytes} bytes differ"
    rate = f"{nbytes / seconds / 1e9:.3f}"
    return [f"{nbytes:,}", f"{seconds * 1e6:.2f}", rate, "OK"]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--qp", type=int, default=1)
    parser.add_argument("--iters", type=int)
    parser.add_argument("--most", type=int, default=1 << 30, help="not of the original: bytes")
    arguments = parser.parse_args()
    nbytes, iterations = KINDS[arguments.kind]
    arguments.iters = arguments.iters or iterations
    rows = []
    while nbytes <= arguments.most:
        rows.append(row_of(arguments, nbytes))
        nbytes *= 2
    print_table(["Size", "Latency (us)", "Bandwidth (GB/s)", "Check"], rows)


if __name__ == "__main__":
    finish(main)
