"""One process reads and writes the memory of another: no process group, no service.

    python examples/transfer.py read --role target &
    python examples/transfer.py read --role initiator

or on two hosts: the target as above, and then

    python examples/transfer.py read --role initiator --target HOST:29600

or between the memory of two GPUs of one host, over NVLink if the GPUs have a link (CUDA IPC):

    python examples/transfer.py read --role target --device cuda:1 &
    python examples/transfer.py read --role initiator --device cuda:0

The first argument is the operation: read (and wait), async (poll meanwhile), coroutine (await many
at once), write, write_with_imm (the target is notified), send (both take part), or all. The route
(shared memory, RDMA, ...) is chosen by the abilities of the two processes, and printed.
"""

import argparse
import asyncio
import json
import socket
import time
from collections.abc import Callable

import torch

import dlslime_backend as dlslime

PAGE = 16 << 10
PAGES = 2048
PORT = 29600

Line = Callable[[str], str]  # sends a line, and returns the peer's line


def meet(role: str, target: str) -> Line:
    """Connect the two processes over TCP; return a function that exchanges lines of JSON.

    Args:
        role: "target" listens, "initiator" connects.
        target: HOST:PORT of the target.
    """
    host, _, port = target.partition(":")
    if role == "target":
        listener = socket.create_server(("", int(port)))
        connection = listener.accept()[0]
    else:
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = socket.create_connection((host, int(port)))
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    reader, writer = connection.makefile("r"), connection.makefile("w")

    def exchange(line: str) -> str:
        writer.write(line + "\n")
        writer.flush()
        return reader.readline().strip()

    return exchange


class Pair:
    """The memory of this process, and the endpoint and memory of the peer."""

    def __init__(self, role: str, device: str, exchange: Line) -> None:
        self.exchange = exchange
        self.device = device
        self.initiator = role == "initiator"
        self.mine = 1 if self.initiator else 2
        self.cache = torch.full((PAGES, PAGE), self.mine, dtype=torch.uint8, device=device)
        self.local = dlslime.register(self.cache, name=f"cache of the {role}")
        self.endpoint = dlslime.Endpoint(role)
        hello = {"address": self.endpoint.address.hex(), "cache": self.local.export().hex()}
        theirs = json.loads(exchange(json.dumps(hello)))
        self.endpoint.connect(bytes.fromhex(theirs["address"]))
        self.remote = dlslime.import_region(bytes.fromhex(theirs["cache"]))

    def meet(self) -> None:
        """Wait until the peer has called `meet`, too."""
        self.exchange("")

    def some_pages(self) -> torch.Tensor:
        """Return the numbers of half of all pages, in random order, int64."""
        return torch.randperm(PAGES)[: PAGES // 2]

    def expect(self, pages: torch.Tensor, value: int) -> None:
        """Assert that the given pages have a value, and that all other pages are unchanged."""
        assert bool((self.cache[pages] == value).all())
        others = torch.ones(PAGES, dtype=torch.bool)
        others[pages] = False
        assert bool((self.cache[others.nonzero().flatten()] == self.mine).all())


def report(what: str, seconds: float, nbytes: int) -> None:
    """Print one line with size, time and rate."""
    rate = nbytes / seconds / 1e9
    print(f"{what:16} {nbytes >> 20:4} MiB in {seconds * 1e3:8.2f} ms, {rate:.2f} GB/s")


def read(pair: Pair) -> None:
    """Read a thousand pages in one transfer, and wait."""
    if pair.initiator:
        pages = pair.some_pages()
        start = time.perf_counter()
        transfer = pair.endpoint.read(pair.local, pair.remote, (pages, pages, PAGE))
        transfer.wait()
        report("read", time.perf_counter() - start, transfer.nbytes)
        pair.expect(pages, 2)


def read_async(pair: Pair) -> None:
    """Compute while a thousand pages are read."""
    if pair.initiator:
        pages = pair.some_pages()
        computed = 0
        transfer = pair.endpoint.read(pair.local, pair.remote, (pages, pages, PAGE))
        while not transfer.done():
            computed += int(torch.arange(1000).sum() > 0)
        transfer.wait()  # raises if the read failed
        print(f"async            computed {computed} times meanwhile")
        pair.expect(pages, 2)


def read_coroutine(pair: Pair) -> None:
    """Await a thousand transfers on the thread of the event loop."""

    async def all_pages(pages: torch.Tensor) -> None:
        async def one(page: int) -> None:
            at = page * PAGE
            await pair.endpoint.read(pair.local, pair.remote, [(at, at, PAGE)])

        await asyncio.gather(*(one(int(page)) for page in pages))

    if pair.initiator:
        pages = pair.some_pages()
        start = time.perf_counter()
        asyncio.run(all_pages(pages))
        report("coroutine", time.perf_counter() - start, len(pages) * PAGE)
        pair.expect(pages, 2)


def write(pair: Pair) -> None:
    """Write into the target, without any action of the target."""
    first = torch.arange(10)
    if pair.initiator:
        start = time.perf_counter()
        transfer = pair.endpoint.write(pair.local, pair.remote, (first, first, PAGE))
        transfer.wait()
        report("write", time.perf_counter() - start, transfer.nbytes)
        pair.meet()
    else:
        pair.meet()
        pair.expect(first, 1)


def write_with_imm(pair: Pair) -> None:
    """Write, and notify the target by a number."""
    first = torch.arange(100)
    if pair.initiator:
        pair.endpoint.write_with_imm(pair.local, pair.remote, (first, first, PAGE), imm=77).wait()
    else:
        number = pair.endpoint.expect_imm().wait()
        print(f"write_with_imm   the target was told {number}")
        assert number == 77
        pair.expect(first, 1)


def send(pair: Pair) -> None:
    """Send a message; the target receives, as with torch.distributed."""
    message = torch.arange(1000.0, device=pair.device)
    if pair.initiator:
        pair.endpoint.send(message, tag=5).wait()
    else:
        received = torch.empty(1000, device=pair.device)
        pair.endpoint.recv(received, tag=5).wait()
        assert torch.equal(received, message)
        print("send             4,000 bytes have arrived")


WHAT = {
    "read": read,
    "async": read_async,
    "coroutine": read_coroutine,
    "write": write,
    "write_with_imm": write_with_imm,
    "send": send,
}


def main() -> None:
    """Run the operations that the command line asks for, in its role."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*WHAT, "all"])
    parser.add_argument("--role", choices=["initiator", "target"], required=True)
    parser.add_argument("--target", default=f"localhost:{PORT}", metavar="HOST:PORT")
    parser.add_argument("--device", default="cpu", help="whose memory: cpu, or a GPU as cuda:0")
    options = parser.parse_args()
    pair = Pair(options.role, options.device, meet(options.role, options.target))
    if pair.initiator:
        print(f"the target is reached by {pair.endpoint.route()}")
    for name in WHAT if options.what == "all" else [options.what]:
        pair.cache.fill_(pair.mine)
        if pair.cache.is_cuda:  # the peer's transfers don't wait for local streams
            torch.cuda.synchronize()
        pair.meet()
        WHAT[name](pair)
        pair.meet()
    pair.local.deregister()
    pair.endpoint.close()


if __name__ == "__main__":
    main()
