"""The worker's side of the vLLM connector: memory, leases of own blocks, loads of others' blocks.

A worker stands on the one-sided API. It has a `Hub`, to which the workers of decode connect, and an
`Endpoint` for each worker of prefill from which it reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from dlslime_backend import memory
from dlslime_backend.integrations._vllm_layout import (
    Cache,
    LocalCache,
    deregister,
    layers_of,
    require_one_device,
    storages,
)
from dlslime_backend.integrations._vllm_leases import Leases
from dlslime_backend.integrations._vllm_loads import Loads
from dlslime_backend.integrations._vllm_scheduler import Plan


class Worker:
    """The memory, leases and loads of one worker. Not thread-safe: vLLM calls from one thread.

    Args:
        engine: name of the engine, for error messages.
        rank: tensor-parallel rank of the worker.
        block_size: tokens of a block.
        lease: seconds that a load may take.
    """

    def __init__(self, engine: str, rank: int, block_size: int, lease: float) -> None:
        name = f"KV cache of {engine} {rank}"
        self._block_size = block_size
        self._caches: dict[str, torch.Tensor] = {}
        self._closed = False
        self._leases = Leases(name, lease)
        self._loads = Loads(name, rank, lease)

    @property
    def cache(self) -> Cache | None:
        """Description of the registered cache."""
        return None if self._loads.own is None else self._loads.own.cache

    def register(self, caches: Mapping[str, torch.Tensor], config: Any) -> None:
        """Register the KV cache for other engines; raises ValueError as `layers_of` does."""
        if self._caches:
            raise ValueError("dlslime: the KV caches are registered already")
        require_one_device(caches)
        layers = layers_of(caches, config)
        self._caches = dict(caches)  # registered by address: keep alive
        regions = [memory.register(span, "KV cache") for span in storages(caches)]
        cache = Cache(
            self._leases.address,
            [region.export() for region in regions],
            self._leases.export_expired(),
            config.num_blocks,
            self._block_size,
            layers,
        )
        self._loads.own = LocalCache(cache, regions)

    def start(self, plan: Plan) -> None:
        """Begin the loads and leases of a plan."""
        now = time.monotonic()
        self._leases.begin(plan.leases, now)
        for request, load in plan.loads.items():
            self._loads.begin(request, load, now)

    def finished(self) -> tuple[set[str], set[str]]:
        """Make progress; return requests whose blocks may be freed, and those with ended loads.

        Raises:
            ValueError: the worker was closed.
        """
        if self._closed:
            raise ValueError("dlslime: the connector was shut down")
        now = time.monotonic()
        return self._leases.take_ended(now), self._loads.take_ended(now)

    def take_errors(self) -> set[int]:
        """Return the blocks of all loads that have failed since the last call."""
        return self._loads.take_errors()

    def close(self) -> None:
        """Leave all peers; transfers in progress fail, here and at the peers."""
        self._closed = True
        self._loads.close()
        self._leases.close()
        if self._loads.own is not None:
            deregister(self._loads.own.regions)
            self._loads.own = None
