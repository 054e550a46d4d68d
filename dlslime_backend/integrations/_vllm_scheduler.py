"""The scheduler's side of the vLLM connector: which blocks go from where to where, and when."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

_PARAMS = "dlslime"
_logger = logging.getLogger("dlslime.vllm")


@dataclass
class Source:
    """A request's blocks at the engine that has computed them; of its `kv_transfer_params`."""

    engine: str
    request: str  # its name there
    blocks: list[int]
    num_tokens: int
    caches: list[str]  # of its ranks, encoded

    def encode(self) -> dict[str, Any]:
        """Return what the prefill engine answers; plain JSON, with vLLM's own names."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine,
            "remote_request_id": self.request,
            "remote_block_ids": self.blocks,
            "remote_num_tokens": self.num_tokens,
            "tp_size": len(self.caches),
            _PARAMS: self.caches,
        }

    @classmethod
    def decode(cls, params: dict[str, Any], tp_size: int) -> Source:
        """Return what `encode` was given.

        Raises:
            ValueError: something is missing, or the engine is of another tensor-parallel size.
        """
        try:
            engine, request = str(params["remote_engine_id"]), str(params["remote_request_id"])
            blocks = [int(block) for block in params["remote_block_ids"]]
            num_tokens = int(params["remote_num_tokens"])
            caches = [str(cache) for cache in params[_PARAMS]]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"dlslime: no kv_transfer_params of a prefill: {error!r}") from error
        if len(caches) != tp_size:
            raise ValueError(
                f"dlslime: the engine {engine} has tensor_parallel_size {len(caches)} and this one "
                f"{tp_size}: KV caches go between equal ones only"
            )
        return cls(engine, request, blocks, num_tokens, caches)


@dataclass
class Load:
    """Blocks to read; without any, the other engine is only told that it may free its own."""

    source: Source
    there: list[int]
    here: list[int]


@dataclass
class Plan:
    """What the scheduler tells the workers in one step."""

    loads: dict[str, Load] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)  # request -> seconds


class Scheduler:
    """One engine's requests that are loaded, or are kept for another engine."""

    def __init__(self, engine: str, tp_size: int, block_size: int, lease: float) -> None:
        self._engine = engine
        self._tp_size = tp_size
        self._block_size = block_size
        self._lease = lease
        self._caches: list[str] = []
        self._plan = Plan()

    def set_caches(self, caches: dict[int, str]) -> None:
        """Take what the workers tell of themselves, by tensor-parallel rank."""
        if sorted(caches) != list(range(self._tp_size)):
            raise ValueError(
                f"dlslime: {self._tp_size} workers are needed, ranks {sorted(caches)} have answered"
            )
        self._caches = [caches[rank] for rank in range(self._tp_size)]

    def matched(self, request: Any, computed: int) -> int:
        """Return how many tokens beyond the first `computed` can be loaded."""
        source = self._source(request)
        return 0 if source is None else max(0, self._total(request, source) - computed)

    def allocated(self, request: Any, blocks: Any, wanted: int) -> None:
        """Plan the load of `wanted` tokens into a request's new blocks; once per request."""
        source = self._source(request)
        if source is None:
            return
        request.kv_transfer_params["do_remote_prefill"] = False
        first, count = 0, 0
        (mine,) = blocks.get_block_ids()
        if wanted:
            # What is cached here already comes first, in whole blocks.
            first = len(mine) - len(blocks.get_unhashed_block_ids())
            count = -(-wanted // self._block_size)
        there, here = source.blocks[first : first + count], mine[first : first + count]
        assert len(there) == len(here) == count, f"{wanted} tokens for {here} of {mine}"
        self._plan.loads[request.request_id] = Load(source, there, here)

    def finished(self, request: Any, blocks: list[int], completed: bool) -> dict[str, Any] | None:
        """Return what a decode engine needs for a request, whose blocks are kept then; or None."""
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):  # aborted before there was a place for it
            self._release(request)
        if not params.get("do_remote_decode") or not completed or not blocks:
            return None
        if not self._caches:
            _logger.error(
                "request %s can't be read: this engine is no producer", request.request_id
            )
            return None
        name, tokens = request.request_id, request.num_computed_tokens
        self._plan.leases[name] = self._lease
        return Source(self._engine, name, list(blocks), tokens, self._caches).encode()

    def take_plan(self) -> Plan:
        """Return what is new since the last call."""
        plan, self._plan = self._plan, Plan()
        return plan

    def _release(self, request: Any) -> None:
        source = self._source(request)
        request.kv_transfer_params["do_remote_prefill"] = False
        if source is not None:
            self._plan.loads[request.request_id] = Load(source, [], [])

    def _source(self, request: Any) -> Source | None:
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return None
        try:
            return Source.decode(params, self._tp_size)
        except ValueError as error:
            # It came with a request: that must not end the engine, which can compute it by itself.
            params["do_remote_prefill"] = False
            _logger.error("request %s is computed here: %s", request.request_id, error)  # noqa: TRY400
            return None

    def _total(self, request: Any, source: Source) -> int:
        held = len(source.blocks) * self._block_size
        return int(min(source.num_tokens, held, request.num_prompt_tokens))
