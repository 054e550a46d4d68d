"""The scheduler's side of the vLLM connector: decides which blocks are copied, and when."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from dlslime_backend._untrusted import fields, integer, items, printable, shown, text
from dlslime_backend.integrations._vllm_layout import MOST_TEXT

_PARAMS = "dlslime"
# Required keys of `kv_transfer_params`.
_NEEDED = (
    "remote_engine_id",
    "remote_request_id",
    "remote_block_ids",
    "remote_num_tokens",
    _PARAMS,
)
MOST_NAME = 4096  # characters of the name of a request or an engine
_MOST_BLOCKS = 1 << 22  # if the length of the prompt is unknown
# Requests whose decoded parameters are kept. Parameters of further requests are decoded again.
_MOST_SOURCES = 1 << 14
_MOST_NUMBER = 2**31 - 1  # of a block, and of tokens
_MOST_RANKS = 4096
_logger = logging.getLogger("dlslime.vllm")


@dataclass
class Source:
    """A request's blocks at the prefill engine; decoded from `kv_transfer_params`."""

    engine: str
    request: str  # name of the request at the prefill engine
    blocks: list[int]
    num_tokens: int
    caches: list[str]  # of the engine's ranks, encoded

    def encode(self) -> dict[str, Any]:
        """Return the `kv_transfer_params` of prefill's answer: plain JSON with vLLM's names."""
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
    def decode(cls, params: object, tp_size: int, most_blocks: int = _MOST_BLOCKS) -> Source:
        """Return the source from the dict of `encode`. The dict comes with a request: untrusted.

        Args:
            params: the request's `kv_transfer_params`.
            tp_size: tensor-parallel size of this engine.
            most_blocks: limit of the number of blocks.

        Raises:
            ValueError: a field is missing or malformed, the prefill engine has another
                tensor-parallel size, or there are more than `most_blocks` blocks.
        """
        try:
            source = cls._of(params, most_blocks)
        except ValueError as error:
            raise ValueError(f"dlslime: no kv_transfer_params of a prefill: {error}") from error
        if len(source.caches) != tp_size:
            raise ValueError(
                f"dlslime: the engine {shown(source.engine)} has tensor_parallel_size "
                f"{len(source.caches)}, and this engine {tp_size}: both must be equal"
            )
        return source

    @classmethod
    def _of(cls, params: object, most_blocks: int) -> Source:
        found = fields(params, "the whole", _NEEDED)
        blocks = items(found["remote_block_ids"], "remote_block_ids", most_blocks)
        return cls(
            text(found["remote_engine_id"], "remote_engine_id", MOST_NAME),
            text(found["remote_request_id"], "remote_request_id", MOST_NAME),
            [integer(block, "a number of remote_block_ids", 0, _MOST_NUMBER) for block in blocks],
            integer(found["remote_num_tokens"], "remote_num_tokens", 0, _MOST_NUMBER),
            [
                text(cache, f"a text of {_PARAMS}", MOST_TEXT)
                for cache in items(found[_PARAMS], _PARAMS, _MOST_RANKS)
            ],
        )


@dataclass
class Load:
    """Blocks to read from `there` into `here`. If both are empty, prefill is only notified."""

    source: Source
    there: list[int]
    here: list[int]


@dataclass
class Plan:
    """Work for the workers in one step: loads to begin, and leases of finished requests."""

    loads: dict[str, Load] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)  # request -> seconds


class Scheduler:
    """The requests of one engine that are loaded from, or kept for, another engine."""

    def __init__(self, engine: str, tp_size: int, block_size: int, lease: float) -> None:
        self._engine = engine
        self._tp_size = tp_size
        self._block_size = block_size
        self._lease = lease
        self._caches: list[str] = []
        self._plan = Plan()
        self._sources: dict[str, Source] = {}  # of requests without a planned load

    def set_caches(self, caches: dict[int, str]) -> None:
        """Take the encoded caches of all workers, by tensor-parallel rank.

        Raises:
            ValueError: a rank is missing.
        """
        if sorted(caches) != list(range(self._tp_size)):
            raise ValueError(
                f"dlslime: {self._tp_size} workers are needed, ranks {sorted(caches)} have answered"
            )
        self._caches = [caches[rank] for rank in range(self._tp_size)]

    def arrived(self, request: Any) -> None:
        """Decode the parameters of a new request; malformed parameters are refused and logged."""
        if request.kv_transfer_params and not isinstance(request.kv_transfer_params, dict):
            found, request.kv_transfer_params = request.kv_transfer_params, None
            _refuse(request, f"kv_transfer_params is {shown(found)}, not an object")
        self._sources.pop(request.request_id, None)  # of an older request of the same name
        self._source(request)

    def matched(self, request: Any, computed: int) -> int:
        """Return how many tokens beyond the first `computed` can be loaded."""
        source = self._source(request)
        return 0 if source is None else max(0, self._total(request, source) - computed)

    def allocated(self, request: Any, blocks: Any, wanted: int) -> None:
        """Plan the load of `wanted` tokens into a request's new blocks; once per request."""
        source = self._source(request)
        self._sources.pop(request.request_id, None)
        if source is None:
            return
        request.kv_transfer_params["do_remote_prefill"] = False
        first, count = 0, 0
        (mine,) = blocks.get_block_ids()
        if wanted:
            # Blocks cached locally come first, and are whole.
            first = len(mine) - len(blocks.get_unhashed_block_ids())
            count = -(-wanted // self._block_size)
        there, here = source.blocks[first : first + count], mine[first : first + count]
        assert len(there) == len(here) == count, f"{wanted} tokens for {here} of {mine}"
        self._plan.loads[request.request_id] = Load(source, there, here)

    def finished(self, request: Any, blocks: list[int], completed: bool) -> dict[str, Any] | None:
        """Return the parameters for decode, and keep the request's blocks; or return None."""
        params = _params(request)
        if params.get("do_remote_prefill"):  # aborted before allocation
            self._release(request)
        self._sources.pop(request.request_id, None)
        if not params.get("do_remote_decode") or not completed or not blocks:
            return None
        if not self._caches:
            name = printable(request.request_id)
            _logger.error("request %s can't be read: this engine is no producer", name)
            return None
        name, tokens = request.request_id, request.num_computed_tokens
        self._plan.leases[name] = self._lease
        # Blocks of speculative or generated tokens are useless to decode: see `_needed`.
        useful = list(blocks)[: self._needed(request)]
        return Source(self._engine, name, useful, tokens, self._caches).encode()

    def take_plan(self) -> Plan:
        """Return the work planned since the last call."""
        plan, self._plan = self._plan, Plan()
        return plan

    def _release(self, request: Any) -> None:
        source = self._source(request)
        request.kv_transfer_params["do_remote_prefill"] = False
        if source is not None:
            self._plan.loads[request.request_id] = Load(source, [], [])

    def _source(self, request: Any) -> Source | None:
        params = _params(request)
        if not params.get("do_remote_prefill"):
            return None
        known = self._sources.get(request.request_id)
        if known is not None:
            return known
        try:
            source = Source.decode(params, self._tp_size, self._needed(request))
        except ValueError as error:
            # Malformed parameters must not end the engine, which can compute the request by itself.
            # So the parameters are neither decoded nor logged again; and an engine that is no
            # producer does not log, either, that the request can't be read.
            params["do_remote_prefill"] = False
            if not self._caches:
                params["do_remote_decode"] = False
            _refuse(request, str(error))
            return None
        # vLLM asks in every step until the request is allocated.
        if len(self._sources) >= _MOST_SOURCES:
            del self._sources[next(iter(self._sources))]
        self._sources[request.request_id] = source
        return source

    def _needed(self, request: Any) -> int:
        """Number of blocks of a request's prompt."""
        return -(-int(request.num_prompt_tokens) // self._block_size)

    def _total(self, request: Any, source: Source) -> int:
        held = len(source.blocks) * self._block_size
        return int(min(source.num_tokens, held, request.num_prompt_tokens))


def _params(request: Any) -> dict[str, Any]:
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}


def _refuse(request: Any, why: str) -> None:
    name = printable(request.request_id)
    _logger.error("request %s is computed here: %s", name, printable(why))
