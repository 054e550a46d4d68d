"""A KV connector for vLLM: disaggregated prefill, where decode reads the blocks from prefill.

    vllm serve ... --kv-transfer-config '{"kv_connector": "DlslimeConnector",
        "kv_connector_module_path": "dlslime_backend.integrations.vllm",
        "kv_role": "kv_producer"}'            # of prefill; decode: "kv_consumer"; or "kv_both"

For vLLM 0.33, whose interface of connectors is called experimental by vLLM itself; others have not
been tried. Any of vLLM's proxies for prefill and decode does, which hands the `kv_transfer_params`
of prefill's answer to decode: they have all that is needed, and no port has to be chosen. Who has
them may read and write prefill's KV cache while it runs.

`kv_transfer_params` must not come from clients: the router or proxy in front of vLLM has to strip
or overwrite what a client's request has under this name. Well-formed params can name any endpoint
that can be reached: decode's workers connect to it and read the memory that the params name, and
they can make a prefill engine free the blocks of another request. Malformed ones harm their own
request only: what the scheduler can't decode it refuses with one line in the log, and decode
computes the request; what a worker can't decode is a load that fails, as below.

What it wants: KV caches on CPUs or CUDA GPUs, each worker's on one device; equal tensor-parallel
sizes, models and KV cache layouts on both sides, without pipeline or context parallelism; one KV
cache group of full attention. It starts no thread and blocks no step.

`kv_connector_extra_config`: "lease_seconds" (480, as long as vLLM's NIXL connector gives), after
which prefill frees blocks that nobody has fetched, and decode gives up a load that has not come:
it fails once nothing can write into its blocks any more. A load that fails, by any cause, is
reported to vLLM: with `"kv_load_failure_policy": "recompute"` decode computes these blocks itself;
vLLM's own default is to fail the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # type: ignore[import-not-found]
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec  # type: ignore[import-not-found]
from vllm.v1.metrics.cache_hit_source import CacheHitSource  # type: ignore[import-not-found]

from dlslime_backend.integrations._vllm_scheduler import Plan, Scheduler
from dlslime_backend.integrations._vllm_worker import Worker

_LEASE = 480.0  # seconds


@dataclass
class DlslimeMetadata(KVConnectorMetadata):
    """What the scheduler's connector tells those of the workers, in each step."""

    plan: Plan


@dataclass
class DlslimeHandshake(KVConnectorHandshakeMetadata):
    """What a worker's connector tells that of the scheduler, once."""

    cache: str


class DlslimeConnector(KVConnectorBase_V1):
    """See the module, and vLLM's KVConnectorBase_V1 for what each method is for.

    Raises:
        ValueError: the configuration is none of what the module names.
    """

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        block_size = _require_plain(vllm_config.parallel_config, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        lease = float(transfer.get_from_extra_config("lease_seconds", _LEASE))
        size = vllm_config.parallel_config.tensor_parallel_size
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(transfer.engine_id, size, block_size, lease)
        else:
            self._worker = Worker(transfer.engine_id, _rank(), block_size, lease)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Tell that the KV caches may not move."""
        return False

    def shutdown(self) -> None:
        """Leave; what other engines read from here ends with an error there."""
        if self._worker is not None:
            self._worker.close()

    # In the scheduler.

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Take what the workers' `get_handshake_metadata` have returned, by their ranks.

        Raises:
            ValueError: not all ranks are there.
        """
        self._of_scheduler.set_caches({rank: entry.cache for rank, entry in metadata.items()})

    def on_new_request(self, request: Any) -> None:
        """Take malformed `kv_transfer_params` away from a request, before it is scheduled."""
        self._of_scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens more prefill has computed; True if they are to be loaded.

        Params of an engine that can't be read from, such as one of another tensor-parallel size,
        are refused with a line in the log, and decode computes the request.
        """
        count = self._of_scheduler.matched(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load of a request's tokens; 0 tells prefill that its blocks are not needed."""
        self._of_scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> DlslimeMetadata:
        """Return what the workers are to begin in this step."""
        return DlslimeMetadata(self._of_scheduler.take_plan())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep what prefill has computed until decode has fetched it, and tell how to."""
        params = self._of_scheduler.finished(request, block_ids, _is_complete(request))
        return params is not None, params

    # In the workers.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Make the KV caches readable for decode, or writable for loads.

        Raises:
            ValueError: a tensor is on another device than CPUs and CUDA GPUs, or they are on
                several; it can't be told where its blocks are; they are registered already.
        """
        self._of_worker.register(kv_caches, self._kv_cache_config)

    def get_handshake_metadata(self) -> DlslimeHandshake | None:
        """Return what the scheduler is to hand to decode; None where nothing is to be read."""
        cache = self._of_worker.cache
        if cache is None or not self._kv_transfer_config.is_kv_producer:
            return None
        return DlslimeHandshake(cache.encode())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin what the scheduler has planned; waits for nothing."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, DlslimeMetadata)
        self._of_worker.start(metadata.plan)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Return requests whose blocks may be freed, and those that are loaded, well or badly."""
        return self._of_worker.finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks of the loads that have failed since the last call."""
        return self._of_worker.take_errors()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: requests begin when all of their layers are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: decode reads where prefill computes."""

    def wait_for_save(self) -> None:
        """Do nothing."""

    @property
    def _of_scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "a method of the scheduler's connector"
        return self._scheduler

    @property
    def _of_worker(self) -> Worker:
        assert self._worker is not None, "a method of the workers' connector"
        return self._worker


def _rank() -> int:
    from vllm.distributed.parallel_state import (  # type: ignore[import-not-found]
        get_tensor_model_parallel_rank,
    )

    return int(get_tensor_model_parallel_rank())


def _is_complete(request: Any) -> bool:
    from vllm.v1.request import RequestStatus  # type: ignore[import-not-found]

    return request.status in (
        RequestStatus.FINISHED_LENGTH_CAPPED,
        RequestStatus.FINISHED_STOPPED,
    )


def _require_plain(parallel: Any, cache: Any) -> int:
    """Refuse what can't be transferred, and return the tokens of a block."""
    for what in (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        if getattr(parallel, what) != 1:
            raise ValueError(f"dlslime: {what} is {getattr(parallel, what)}; only 1 is supported")
    groups = cache.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"dlslime: {len(groups)} KV cache groups; only one is supported")
    spec = groups[0].kv_cache_spec
    specs = getattr(spec, "kv_cache_specs", {"": spec}).values()
    others = {type(entry).__name__ for entry in specs if not isinstance(entry, FullAttentionSpec)}
    if others:
        raise ValueError(f"dlslime: KV caches of full attention only, not {', '.join(others)}")
    return int(spec.block_size)
