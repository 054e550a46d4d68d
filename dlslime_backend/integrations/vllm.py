"""A KV connector for vLLM: disaggregated prefill, where decode reads the blocks from prefill.

    vllm serve ... --kv-transfer-config '{"kv_connector": "DlslimeConnector",
        "kv_connector_module_path": "dlslime_backend.integrations.vllm",
        "kv_role": "kv_producer"}'            # of prefill; decode: "kv_consumer"; or "kv_both"

For vLLM 0.33, whose connector interface is experimental; other versions are untested. Every proxy
of vLLM for prefill and decode works if it hands the `kv_transfer_params` of prefill's answer to
decode. The params contain everything that decode needs, so no port has to be configured. Every
holder of the params may read and write prefill's KV cache while prefill runs.

`kv_transfer_params` must not come from clients: the router or proxy in front of vLLM has to strip
or overwrite the field of that name in a client's request. Well-formed params can name any reachable
endpoint: decode's workers connect to the endpoint and read the memory named by the params, and can
make a prefill engine free the blocks of another request. Malformed params harm their own request
only. If the scheduler can't decode the params, it logs one line, and decode computes the request;
if a worker can't decode its part, the load fails, as below.

Requirements: KV caches on CPUs or CUDA GPUs, the cache of a worker on one device; equal
tensor-parallel sizes, models and KV cache layouts of prefill and decode; no pipeline or context
parallelism; one KV cache group of full attention. The connector starts no thread and blocks no
step.

`kv_connector_extra_config`: "lease_seconds" (default 480, as in vLLM's NIXL connector). After the
lease, prefill frees blocks that no engine has fetched, and decode gives up an unfinished load,
which fails once its blocks can't be written any more. Failed loads are reported to vLLM: with
`"kv_load_failure_policy": "recompute"` decode computes the blocks by itself; by default vLLM fails
the request.
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
    """Message from the scheduler's connector to the workers' connectors, in each step."""

    plan: Plan


@dataclass
class DlslimeHandshake(KVConnectorHandshakeMetadata):
    """Message from a worker's connector to the scheduler's connector, once at start."""

    cache: str


class DlslimeConnector(KVConnectorBase_V1):
    """The connector class; vLLM's KVConnectorBase_V1 says when each method is called.

    vLLM makes one connector in the scheduler, and one in each worker.

    Raises:
        ValueError: the configuration does not meet the requirements of the module.
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
        """Return False: the KV caches must stay in place."""
        return False

    def shutdown(self) -> None:
        """Leave all peers; transfers of other engines with this worker fail."""
        if self._worker is not None:
            self._worker.close()

    # Methods of the scheduler's connector.

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Take the results of the workers' `get_handshake_metadata`, by rank.

        Raises:
            ValueError: a rank is missing.
        """
        self._of_scheduler.set_caches({rank: entry.cache for rank, entry in metadata.items()})

    def on_new_request(self, request: Any) -> None:
        """Decode the `kv_transfer_params` of a new request; malformed params are disabled."""
        self._of_scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens after the computed ones can be loaded, and whether any can.

        Params of an engine that can't be read, such as an engine of another tensor-parallel size,
        are refused with a line in the log, and decode computes the request.
        """
        count = self._of_scheduler.matched(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load of a request's tokens. With 0 tokens, prefill is only notified."""
        self._of_scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> DlslimeMetadata:
        """Return the loads and leases for the workers, planned since the last call."""
        return DlslimeMetadata(self._of_scheduler.take_plan())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks of a finished request for decode, if the request asks for remote decode.

        Returns:
            (True, params for decode) if the blocks are kept, or (False, None) if vLLM may free
            them.
        """
        params = self._of_scheduler.finished(request, block_ids, _is_complete(request))
        return params is not None, params

    # Methods of the workers' connectors.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Register the KV caches for reads by decode and for loads.

        Raises:
            ValueError: a tensor is on another device than CPUs and CUDA GPUs; the tensors are on
                several devices; the dimension of the blocks can't be determined; or caches are
                registered already.
        """
        self._of_worker.register(kv_caches, self._kv_cache_config)

    def get_handshake_metadata(self) -> DlslimeHandshake | None:
        """Return the description of the cache for decode; None if the engine is no producer."""
        cache = self._of_worker.cache
        if cache is None or not self._kv_transfer_config.is_kv_producer:
            return None
        return DlslimeHandshake(cache.encode())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the planned loads; does not wait."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, DlslimeMetadata)
        self._of_worker.start(metadata.plan)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Return requests whose blocks may be freed, and requests whose loads have ended."""
        return self._of_worker.finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks of all loads that have failed since the last call."""
        return self._of_worker.take_errors()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request runs after all of its layers are loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: decode reads from the blocks in which prefill computes."""

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
    """Return the number of tokens of a block.

    Raises:
        ValueError: the configuration is not supported.
    """
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
