"""Generation C: eight threads read and write through a common pair of endpoints."""

from collections.abc import Callable

from dlslime import RDMAEndpoint
from ends import expect, numbers
from stress import Loop, at_once, run_each, wait_all

THREADS, ROUNDS, PIECE = 8, 50, 64
PART = ROUNDS * PIECE  # of each thread


def main(device: str, num_qp: int) -> None:
    loop = Loop(RDMAEndpoint, device, num_qp, 2 * THREADS * PART)
    contents = numbers(2 * THREADS * PART, 1), numbers(2 * THREADS * PART, 2)
    loop.local.copy_(contents[0])
    loop.remote.copy_(contents[1])

    def reader_and_writer(thread: int) -> Callable[[], set[int]]:
        endpoint = loop.endpoints[thread % 2]
        read_at, write_at = 2 * thread * PART, (2 * thread + 1) * PART

        def part() -> set[int]:
            futures = []
            for offset in range(0, PART, PIECE):
                read, write = read_at + offset, write_at + offset
                futures.append(endpoint.read([(0, 0, read, read, PIECE)]))
                futures.append(endpoint.write([(0, 0, write, write, PIECE)]))
            return wait_all(futures)

        return part

    assert at_once(*map(reader_and_writer, range(THREADS))) == [{0}] * THREADS
    for thread in range(THREADS):
        # Threads of endpoint 0 read from the remote memory, threads of endpoint 1 from the local.
        theirs, mine = 1 - thread % 2, thread % 2
        read = slice(2 * thread * PART, (2 * thread + 1) * PART)
        write = slice(read.stop, read.stop + PART)
        for memory in (loop.local, loop.remote):
            expect(memory[read], contents[theirs][read], f"what thread {thread} read")
            expect(memory[write], contents[mine][write], f"what thread {thread} wrote")
    loop.shutdown()


if __name__ == "__main__":
    run_each(main, __doc__)
