"""An engine of vLLM, with vLLM's own scheduler, and a pattern of the tokens instead of a model."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

import gpus
import nodes
from vllm_files import find_vllm

LAYERS = 3
BLOCK = 4  # tokens
HEADS, HEAD = 2, 8  # for keys and for values, of halves: 256 bytes of a block in each layer


class Engine:
    """Scheduler, KV cache and connectors of an engine, with all workers in one process."""

    def __init__(
        self,
        name: str,
        role: str,
        blocks: int,
        layout: str = "LBHNC",
        ranks: int = 1,
        kernel_block: int = BLOCK,
        lease: float = 60,
        caching: bool = False,
        device: str = "cpu",
    ) -> None:
        find_vllm()
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_layout import KVCacheLayout

        self.salt = sum(name.encode())
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.invalid: set[int] = set()
        self.answers: dict[str, Any] = {}
        self.caching = caching
        self.device = device
        self.cache_config = cache_config(blocks, KVCacheLayout[layout])
        config = vllm_config(name, role, blocks, ranks, lease, caching)
        self.scheduler = Scheduler(config, self.cache_config, mock.Mock(), BLOCK)
        self.caches = [
            views(self.cache_config, KVCacheLayout[layout], kernel_block, device)
            for _ in range(ranks)
        ]
        self.workers = [self._worker(config, rank) for rank in range(ranks)]
        shakes = {(0, r): w.get_handshake_metadata() for r, w in enumerate(self.workers)}
        if all(shakes.values()):
            shakes = pickle.loads(pickle.dumps(shakes))
            self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(shakes)
        self.aggregator = KVOutputAggregator.from_connector(self.workers[0], ranks)

    def _worker(self, config: Any, rank: int) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

        where = "vllm.distributed.parallel_state.get_tensor_model_parallel_rank"
        with mock.patch(where, return_value=rank):
            worker = KVConnectorFactory.create_connector(
                config, KVConnectorRole.WORKER, self.cache_config
            )
        worker.register_kv_caches(self.caches[rank])
        return worker

    def add(self, name: str, prompt: list[int], params: Any, tokens: int = 1, **more: Any) -> Any:
        """Begin a request with kv_transfer_params, for `tokens` tokens."""
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        sampling = SimpleNamespace(
            max_tokens=tokens,
            min_tokens=0,
            extra_args={"kv_transfer_params": params},
            skip_reading_prefix_cache=None,
            eos_token_id=None,
            stop_token_ids=None,
            repetition_detection=None,
            num_logprobs=None,
        )
        init_none_hash(sha256)
        hasher = get_request_block_hasher(BLOCK, sha256) if self.caching else None
        request = Request(name, prompt, sampling, None, block_hasher=hasher, **more)
        self.scheduler.add_request(request)
        return request

    def step(self) -> None:
        """Run a step of vLLM's engine: schedule, load, compute, collect."""
        from vllm.v1.outputs import ModelRunnerOutput

        planned = self.planned = self.scheduler.schedule()
        outputs = []
        names = list(planned.num_scheduled_tokens)
        for rank in range(len(self.workers)):
            kv = self._work(rank, planned)
            places = {name: place for place, name in enumerate(names)}
            outputs.append(ModelRunnerOutput(names, places, self._sample(planned, names)))
            outputs[-1].kv_connector_output = kv
        output = self.aggregator.aggregate(outputs)
        kv = output.kv_connector_output
        if kv is not None:
            self.sent.update(kv.finished_sending or ())
            self.received.update(kv.finished_recving or ())
            self.invalid |= kv.invalid_block_ids
        for answer in self.scheduler.update_from_output(planned, output).values():
            for entry in answer.outputs:
                if entry.kv_transfer_params:
                    self.answers[entry.request_id] = entry.kv_transfer_params

    def run(self, until: Any, seconds: float = 20 * nodes.PATIENCE) -> None:
        """Run steps until something is true, at the pace of a large model while blocks are loaded.

        A loaded request must not end before the other requests are loaded: the longer a load takes,
        the slower the steps, each of which makes a token.
        """
        deadline = time.monotonic() + seconds
        pause = 0.05
        while not until():
            assert time.monotonic() < deadline, "it takes too long"
            self.step()
            loads = self._loads()
            time.sleep(pause if loads else 0.001)
            pause = min(pause * 1.3, 1.0) if loads else 0.05

    def _loads(self) -> bool:
        every = self.scheduler.requests.values()
        return any(request.status.name == "WAITING_FOR_REMOTE_KVS" for request in every)

    def idle(self) -> bool:
        """Tell whether every request has ended, with its blocks freed."""
        return not self.scheduler.requests

    def blocks_of(self, name: str) -> list[int]:
        """Return a request's blocks."""
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        return blocks

    def expect(self, request: Any, salt: int, first: int, last: int) -> None:
        """Check that all layers of all ranks have the request's tokens, computed by an engine."""
        blocks = self.blocks_of(request.request_id)
        for rank in range(len(self.workers)):
            for at in range(first, last):
                for number, row in enumerate(self._rows(rank, blocks[at // BLOCK], at % BLOCK)):
                    expected = content(request.all_token_ids[at], number, salt + rank)
                    assert torch.equal(row.cpu(), expected), (
                        f"rank {rank} layer {number} token {at}"
                    )

    def _work(self, rank: int, planned: Any) -> Any:
        from vllm.v1.outputs import KVConnectorOutput

        worker, output = self.workers[rank], KVConnectorOutput()
        worker.bind_connector_metadata(pickle.loads(pickle.dumps(planned.kv_connector_metadata)))
        self._forward(rank, planned)
        worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(planned.finished_req_ids)
        output.finished_sending = results.finished_sending
        output.finished_recving = results.finished_recving
        output.failed_recving = results.failed_recving
        output.invalid_block_ids = worker.get_block_ids_with_load_errors()
        worker.clear_connector_metadata()
        return output

    def _forward(self, rank: int, planned: Any) -> None:
        for name, count in planned.num_scheduled_tokens.items():
            request, blocks = self.scheduler.requests[name], self.blocks_of(name)
            for at in range(request.num_computed_tokens - count, request.num_computed_tokens):
                token = request.all_token_ids[at]
                for number, row in enumerate(self._rows(rank, blocks[at // BLOCK], at % BLOCK)):
                    row.copy_(content(token, number, self.salt + rank))

    def _rows(self, rank: int, block: int, token: int) -> list[torch.Tensor]:
        rows = []
        for _, cache in sorted(self.caches[rank].items()):  # [blocks, heads, tokens, K and V]
            size = cache.shape[2]  # a kernel's block may be smaller
            rows.append(cache[block * (BLOCK // size) + token // size, :, token % size])
        return rows

    def _sample(self, planned: Any, names: list[str]) -> list[list[int]]:
        if self.device == "cuda":
            gpus.settle()  # tokens have come from the GPU
        sampled = []
        for name in names:
            request = self.scheduler.requests[name]
            complete = request.num_computed_tokens >= request.num_tokens
            sampled.append([request.num_tokens % 100] if complete else [])
        return sampled


def content(token: int, layer: int, salt: int) -> torch.Tensor:
    """Return an engine's result for a token, in integers that halves hold exactly."""
    row = torch.arange(HEADS * 2 * HEAD) * 7 + token * 13 + layer * 31 + salt * 17
    return (row % 251).to(torch.bfloat16).view(HEADS, 2 * HEAD)


def cache_config(blocks: int, layout: Any) -> Any:
    """Return a KVCacheConfig of one group of full attention."""
    from vllm.v1 import kv_cache_interface as kv

    spec = kv.FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.bfloat16
    )
    names = [f"model.layers.{number}.attn" for number in range(LAYERS)]
    strides = kv.compute_layout_strides(spec, blocks, LAYERS, layout)
    size = LAYERS * blocks * spec.page_size_bytes
    placed = kv.KVCacheTensor(size, names, layer_stride=strides[0], block_stride=strides[1])
    groups = [kv.KVCacheGroupSpec(names, spec)]
    return kv.KVCacheConfig(blocks, [placed], groups, kv_cache_layout=layout.name)


def views(config: Any, layout: Any, kernel_block: int, device: str) -> dict[str, torch.Tensor]:
    """Return the layers' tensors, in vLLM's layout."""
    from vllm.v1.kv_cache_interface import create_kv_cache_views

    (placed,) = config.kv_cache_tensors
    raw = torch.zeros(placed.size, dtype=torch.int8, device=device)
    spec = config.kv_cache_groups[0].kv_cache_spec
    made = create_kv_cache_views(raw, spec, config.num_blocks, layout, placed, kernel_block)
    return dict(zip(placed.layers, made))


NONE = ["lora_config", "kv_events_config", "ec_transfer_config", "speculative_config"]
ZERO = [
    "is_mm_encoder_only",
    "use_v2_model_runner",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
]
MODEL = {
    "uses_mrope": False,
    "is_encoder_decoder": False,
    "is_diffusion": False,
    "supports_multimodal_inputs": False,
    "return_sampling_mask": False,
    "max_model_len": 512,
    "runner_type": "generate",
}
PARALLEL = {
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "data_parallel_size": 1,
    "data_parallel_index": 0,
}
SCHEDULER = {
    "disable_hybrid_kv_cache_manager": True,
    "max_num_seqs": 16,
    "max_num_active_seqs": None,
    "max_num_batched_tokens": 256,
    "max_num_scheduled_tokens": None,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "policy": "fcfs",
    "async_scheduling": False,
    "enable_chunked_prefill": True,
    "disable_chunked_mm_input": False,
    "prefill_schedule_interval": 1,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
}
OBSERVABILITY = {
    "per_request_spec_decode_metrics": None,
    "kv_cache_metrics": False,
    "enable_mfu_metrics": False,
    "enable_logging_iteration_details": False,
}


def vllm_config(
    name: str, role: str, blocks: int, ranks: int, lease: float, caching: bool
) -> SimpleNamespace:
    """Return the attributes of a VllmConfig used by the scheduler and the connector."""
    from vllm.config.kv_transfer import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="DlslimeConnector",
        kv_connector_module_path="dlslime_backend.integrations.vllm",
        kv_role=role,
        engine_id=name,
        kv_buffer_device="cpu",
        kv_connector_extra_config={"lease_seconds": lease},
        kv_load_failure_policy="recompute",
    )
    cache = SimpleNamespace(
        block_size=BLOCK,
        num_gpu_blocks=blocks,
        enable_prefix_caching=caching,
        enable_mamba_shared_prefix_checkpoint=False,
        mamba_cache_mode="none",
    )
    return SimpleNamespace(
        **dict.fromkeys(NONE),
        **dict.fromkeys(ZERO, 0),
        kv_transfer_config=transfer,
        max_concurrent_batches=1,
        max_in_flight_tokens=256,
        model_config=SimpleNamespace(**MODEL),
        cache_config=cache,
        parallel_config=SimpleNamespace(**PARALLEL, tensor_parallel_size=ranks),
        scheduler_config=SimpleNamespace(**SCHEDULER),
        observability_config=SimpleNamespace(**OBSERVABILITY),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
    )
