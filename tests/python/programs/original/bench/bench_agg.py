"""agg_transfer_bench_spmd of generation C: torchrun --nproc-per-node 2 bench_agg.py."""

from typing import Any

import dlslime
import torch
from bench_spmd import options, run_ranks
from ends import finish


class Endpoint:
    """Regions by name, transfers by handles; see `bench_spmd.Calls`."""

    def __init__(self, rank: int, num_qp: int) -> None:
        nics = dlslime.available_nic()
        self._endpoint = dlslime.RDMAEndpoint(nics[rank % len(nics)], num_qp=num_qp)
        self._handles: list[tuple[int, int]] = []
        self._mine: list[int] = []

    def register(self, tensors: list[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            place = tensor.data_ptr(), tensor.storage_offset(), tensor.nbytes
            self._mine.append(self._endpoint.register_memory_region(f"message {number}", *place))

    def info(self) -> Any:
        return self._endpoint.endpoint_info()

    def connect(self, info: Any) -> None:
        for number, handle in enumerate(self._mine):
            name = f"message {number}"
            remote = self._endpoint.register_remote_memory_region(name, info["mr_info"][name])
            self._handles.append((handle, remote))
        self._endpoint.connect(info)

    def begin(self, opcode: str, number: int, nbytes: int, pieces: int) -> Any:
        call = self._endpoint.read if opcode == "read" else self._endpoint.write
        return call([(*self._handles[number], 0, 0, nbytes)] * pieces, None)


def main() -> None:
    run_ranks(options(__doc__, "write", 19, 10), Endpoint)


if __name__ == "__main__":
    finish(main)
