"""agg_transfer_bench_spmd of generation B: torchrun --nproc-per-node 2 bench_agg_post10.py."""

from typing import Any

import dlslime
import torch
from bench_spmd import options, run_ranks
from ends import finish


class Endpoint:
    """An equal text as key at both ends, batches of Assignments; see `bench_spmd.Calls`."""

    def __init__(self, rank: int, num_qp: int) -> None:
        nics = dlslime.available_nic()
        self._endpoint = dlslime.RDMAEndpoint(nics[rank % len(nics)], qp_num=num_qp)

    def register(self, tensors: list[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            place = tensor.data_ptr(), tensor.storage_offset(), tensor.nbytes
            self._endpoint.register_memory_region(str(number), *place)

    def info(self) -> Any:
        return self._endpoint.endpoint_info

    def connect(self, info: Any) -> None:
        self._endpoint.connect(info)

    def begin(self, opcode: str, number: int, nbytes: int, pieces: int) -> Any:
        piece = {"target_offset": 0, "source_offset": 0, "length": nbytes}
        batch = [dlslime.Assignment(mr_key=str(number), **piece) for _ in range(pieces)]
        endpoint = self._endpoint
        call = endpoint.read_batch if opcode == "read" else endpoint.write_batch
        return call(batch, async_op=True)


def main() -> None:
    run_ranks(options(__doc__, "read", 24, None), Endpoint)


if __name__ == "__main__":
    finish(main)
