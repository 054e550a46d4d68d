"""Common parts of the stress programs of generation C: two endpoints of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dlslime import available_nic
from ends import filled, finish, parser_of
from torch import Tensor

QUEUE_PAIRS = (1, 2, 4)


class Loop:
    """Two connected endpoints of equal size: zeros at the initiator, ones at the target."""

    def __init__(
        self, make: Callable[..., Any], device: str, num_qp: int, nbytes: int = 4096
    ) -> None:
        nics = available_nic()
        self.endpoints = [make(device_name=nic, num_qp=num_qp) for nic in (nics[0], nics[-1])]
        self.local, self.remote = (filled(nbytes, value, device) for value in (0, 1))
        for endpoint, memory in zip(self.endpoints, (self.local, self.remote)):
            assert endpoint.register_memory_region("region", memory.data_ptr(), 0, nbytes) == 0
        infos = [endpoint.endpoint_info() for endpoint in self.endpoints]
        for endpoint, info in zip(self.endpoints, reversed(infos)):
            endpoint.connect(info)

    def shutdown(self) -> None:
        """End both endpoints twice, since a second shutdown is allowed."""
        for endpoint in (*self.endpoints, *self.endpoints):
            endpoint.shutdown()


def at_once(*parts: Callable[[], Any]) -> list[Any]:
    """Run each part in a thread of its own; return the results."""
    with ThreadPoolExecutor(len(parts)) as threads:
        return [running.result() for running in [threads.submit(part) for part in parts]]


def wait_all(futures: list[Any]) -> set[int]:
    """Wait for all futures, and return the different results."""
    return {future.wait() for future in futures}


def chunks(memory: Tensor, length: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces of a tensor in the form for `send` and `recv`."""
    for offset in range(0, memory.numel(), length):
        yield memory.data_ptr() + offset, 0, length


def run_each(main: Callable[[str, int], None], description: str | None) -> None:
    """Run a program with 1, 2 and 4 queue pairs."""
    parser = parser_of(description)
    parser.add_argument("--num-qp", type=int, nargs="+", default=QUEUE_PAIRS)
    arguments = parser.parse_args()

    def with_each() -> None:
        for number in arguments.num_qp:
            main(arguments.device, number)

    finish(with_each)
