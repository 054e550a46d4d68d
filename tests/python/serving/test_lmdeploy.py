"""LMDeploy's own migration of KV caches, on top of dlslime: prefill's blocks move into decode's.

Real, byte for byte from LMDeploy's wheel (`VERSION`, `SHA256`): CacheEngine, its constructor and
p2p_initialize, p2p_connect and migrate; the cache plans and layouts, and the backend of the device
"cuda" that chooses plans and layouts; DLSlimeBackend, found by CacheEngine in the registry, which
imports dlslime_backend.compat.dlslime as `dlslime`; the messages, as the JSON carried by LMDeploy's
proxy. Imports are real, too: mmengine, pydantic, psutil.

Stand-ins, none in a migration's way:

* the __init__ of `lmdeploy` and of `lmdeploy.pytorch.engine`, which import the server and models,
  are left out; `transformers` has only a PretrainedConfig, `lmdeploy.pytorch.model_inputs` only a
  get_step_ctx_manager, and neither is ever called;
* `OnTheCpu` allocates CPU memory when CacheEngine asks for "cuda", in the layout chosen by
  LMDeploy; its stream, torch.cuda.Event and torch.cuda.current_stream are mocks in its constructor,
  which needs streams and events for swapping;
* for the proxy, the scheduler and the executor the test itself carries the messages, says which
  blocks move, and calls CacheEngine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import math
import os
import signal
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from dlslime_backend.compat import provide
from harness import Died, await_death, await_key, dlslime_only, run_world, send_signal, sync, tell
from patterns import expect, pattern
from wheels import FOLDER as WHEELS
from wheels import made, python_files

VERSION = "0.18.0"
SHA256 = "e6790a25dcdb0345c160567fdf2ac604fec319389523a8b806834c9d92c8ffe1"
# One wheel for every Python that runs the tests: only its *.py are used.
WHEEL_FOR = ["--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_28_x86_64"]
FOLDER = WHEELS / f"lmdeploy-{VERSION}"

LAYERS = 32
BLOCK_TOKENS = 16  # of two heads of 32 halves, for keys and for values: 4 KiB in each layer
BLOCKS = {"prefill": 160, "prefill 2": 150, "decode": 144}  # of each engine's cache
PAIR = ["prefill", "decode"]  # the engines of ranks 0 and 1, mostly

Move = tuple[str, list[tuple[int, int]]]  # an engine, and pairs of its block and of decode's

pytestmark = [dlslime_only, pytest.mark.usefixtures("_lmdeploy")]

# LMDeploy waits for a transfer in its event loop, or in a thread if a variable says so.
IN_LOOP: dict[str, str] = {}
IN_THREAD = {"LMDEPLOY_USE_ASYNC_MIGRATION": "1"}


@pytest.fixture(scope="session")
def _lmdeploy() -> None:
    unpack()


def unpack() -> None:
    """Unpack LMDeploy's Python files into FOLDER in the first run."""
    made(
        FOLDER.name,
        lambda folder: python_files(
            folder, f"lmdeploy=={VERSION}", SHA256, WHEEL_FOR, ["lmdeploy/"]
        ),
    )


def _stand_in(name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def _find_lmdeploy() -> None:
    """Make LMDeploy importable, in a process used only for LMDeploy."""
    if "lmdeploy" in sys.modules:
        return
    provide("dlslime")
    for package in ("lmdeploy", "lmdeploy.pytorch.engine"):
        _stand_in(package, __path__=[str(FOLDER.joinpath(*package.split(".")))])
    _stand_in("transformers", PretrainedConfig=type("PretrainedConfig", (), {}))
    _stand_in("lmdeploy.pytorch.model_inputs", get_step_ctx_manager=None)
    # yapf, imported by mmengine, names its cache file before the file is complete: another process
    # that starts at the same time would read half of the file. So each process has its own cache.
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}),
    ):
        backend = importlib.import_module("lmdeploy.pytorch.disagg.backend.dlslime")
    assert backend.RDMAEndpoint.__module__.startswith("dlslime_backend.compat.dlslime.")


class OnTheCpu:
    """A layout of LMDeploy's that takes its memory from the CPU, for any device."""

    def __init__(self, layout: Any) -> None:
        self._layout = layout

    def allocate(self, num_blocks: int, device: object) -> Any:
        return self._layout.allocate(num_blocks, "cpu")


def _cache_engine(blocks: int, requests: Sequence[Mapping[str, Any]]) -> Any:
    from lmdeploy.pytorch.config import CacheConfig, ModelConfig
    from lmdeploy.pytorch.engine.cache_engine import CacheEngine
    from lmdeploy.pytorch.engine.cache_engine.plan import build_block_cache_plan
    from lmdeploy.pytorch.engine.cache_engine.schema import BlockCacheRequest

    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    tokens = {"bos_token_id": 0, "eos_token_id": [0]}
    model = ModelConfig(hidden_size=64, num_layers=LAYERS, **heads, **tokens)
    sizes = {"block_size": BLOCK_TOKENS, "num_cpu_blocks": 0, "num_gpu_blocks": blocks}
    config = CacheConfig(max_batches=1, **sizes)
    pools = [BlockCacheRequest(**request) for request in requests]
    plan = build_block_cache_plan(model, config, 1, request_collector=lambda _: pools)
    plan = dataclasses.replace(plan, layout=OnTheCpu(plan.layout))
    with mock.patch.multiple(torch.cuda, current_stream=mock.Mock(), Event=mock.Mock()):
        return CacheEngine(config, cache_stream=mock.Mock(), block_cache_plan=plan)


class Engine:
    """An engine of LMDeploy: its CacheEngine, and LMDeploy's calls of a migration."""

    def __init__(self, name: str, requests: Sequence[Mapping[str, Any]] = ()) -> None:
        _find_lmdeploy()
        from lmdeploy.pytorch.disagg.config import DistServeEngineConfig

        self.name = name
        self.cache = _cache_engine(BLOCKS[name], requests)
        for number, pool in enumerate(self.pools()):
            pool.copy_(contents(name, number, pool))
        self.config = DistServeEngineConfig(
            **dict.fromkeys(["tp_size", "ep_size", "dp_size", "pp_size"], 1),
            dp_rank=0,
            block_size=BLOCK_TOKENS,
            num_cpu_blocks=0,
            num_gpu_blocks=BLOCKS[name],
        )

    def pools(self) -> list[torch.Tensor]:
        """Return the cache's bytes: rows (layers, mostly) x blocks x contents of a block."""
        return [pool.tensor.view(torch.uint8) for pool in self.cache.gpu_allocation.pools]

    def link(
        self, other: str, protocol: str = "RDMA", attempt: int = 0, describes: bool = True
    ) -> None:
        """Take the steps that LMDeploy's proxy asks for, as engine `other` does at the same time.

        Args:
            other: the engine's name.
            protocol: a MigrationProtocol.
            attempt: tells links of a pair of engines apart.
            describes: whether the info has the cache's layout; older LMDeploys have no layout.
        """
        from lmdeploy.pytorch.disagg.config import DistServeRDMAConfig
        from lmdeploy.pytorch.disagg.conn.protocol import DistServeInitRequest, MigrationProtocol

        self.protocol = MigrationProtocol[protocol]
        request = DistServeInitRequest(
            local_engine_id=self.name,
            local_engine_config=self.config,
            remote_engine_id=other,
            remote_engine_config=self._swap(self.config, other, attempt),
            protocol=self.protocol,
            rdma_config=DistServeRDMAConfig(),
        )
        info = self.cache.p2p_initialize(request)
        if not describes:
            info.cache_pools = None
        self.cache.p2p_connect(other, [self._swap(info, other, attempt)])

    def _swap(self, message: Any, other: str, attempt: int) -> Any:
        kind = type(message)
        key = f"{attempt} {kind.__name__}"
        tell(f"{key}: {self.name} to {other}", message.model_dump_json())
        return kind.model_validate_json(await_key(f"{key}: {other} to {self.name}"))

    async def migrate(self, *moves: Move) -> None:
        """Read blocks of other engines, as a decode engine does for a request."""
        from lmdeploy.pytorch.disagg.messages import MigrationExecutionBatch

        await self.cache.migrate(MigrationExecutionBatch(protocol=self.protocol, requests=moves))

    def expect(self, *moves: Move) -> None:
        """Check that only `moves` have changed bytes of the cache."""
        for number, pool in enumerate(self.pools()):
            expected = contents(self.name, number, pool)
            for other, pairs in moves:
                theirs, ours = (list(blocks) for blocks in zip(*pairs))
                expected[:, ours] = contents(other, number, pool)[:, theirs]
            expect(pool, expected, f"pool {number}")


def contents(name: str, number: int, like: torch.Tensor) -> torch.Tensor:
    """Return engine `name`'s initial contents of pool `number`, shaped as `like` but for blocks."""
    shape = (like.shape[0], BLOCKS[name], *like.shape[2:])
    return pattern(math.prod(shape), 10 * list(BLOCKS).index(name) + number).view(shape)


def some_moves(other: str, count: int, parts: int) -> list[Move]:
    """Return `parts` moves of `count` blocks each, from and to random blocks, each moved once."""
    generator = torch.Generator().manual_seed(count)
    theirs, ours = (
        torch.randperm(BLOCKS[name], generator=generator)[: count * parts].view(parts, count)
        for name in (other, "decode")
    )
    return [(other, list(zip(a, b))) for a, b in zip(theirs.tolist(), ours.tolist())]


def _move(rank: int, size: int, protocol: str) -> None:
    engine = Engine(PAIR[rank])
    engine.link(PAIR[1 - rank], protocol)
    if rank == 1:
        moves = some_moves("prefill", 128, parts=1)
        asyncio.run(engine.migrate(*moves))
        engine.expect(*moves)
    sync("moved")
    if rank == 0:
        engine.expect()


@pytest.mark.parametrize(
    ("protocol", "env"), [("RDMA", IN_LOOP), ("NVLINK", IN_THREAD)], ids=["rdma", "nvlink"]
)
def test_blocks_of_all_layers_migrate_to_other_places(protocol: str, env: dict[str, str]) -> None:
    """32 layers x 128 blocks: 4,096 assignments in one call."""
    run_world(_move, 2, protocol, env=env, init=False, fresh=True)


def _at_a_time(rank: int, size: int) -> None:
    engine = Engine(PAIR[rank])
    engine.link(PAIR[1 - rank])
    if rank == 1:
        *moves, last = some_moves("prefill", 8, parts=17)

        async def in_one_loop() -> None:
            await asyncio.gather(*(engine.migrate(move) for move in moves[:8]))

        asyncio.run(in_one_loop())
        engine.expect(*moves[:8])
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda move: asyncio.run(engine.migrate(move)), moves[8:]))
        asyncio.run(engine.migrate(last))
        engine.expect(*moves, last)
    sync("moved")


@pytest.mark.parametrize("env", [IN_LOOP, IN_THREAD], ids=["waits_in_loop", "waits_in_thread"])
def test_eight_migrations_at_a_time(env: dict[str, str]) -> None:
    run_world(_at_a_time, 2, env=env, init=False, fresh=True)


# Pools for models with sparse attention: a pool with a row per layer, and a pool of whole tensors.
# The empty pool gets no region, so that the keys of the regions have a gap.
MORE_POOLS: list[dict[str, Any]] = [
    *[{"name": "index", "shape": (BLOCK_TOKENS, 33), "dtype": torch.uint8}] * LAYERS,
    {"name": "empty", "shape": (0,), "dtype": torch.uint8},
    {"name": "scales", "shape": (2, 5), "dtype": torch.float32, "per_row_contiguous": True},
]


def _two_at_once(rank: int, size: int) -> None:
    sources = ["prefill", "prefill 2"]
    if rank == 0:
        engines = [Engine(name, MORE_POOLS) for name in sources]
        for engine in engines:
            engine.link("decode")
    else:
        decode = Engine("decode", MORE_POOLS)
        assert [pool.numel() > 0 for pool in decode.pools()] == [True, True, False, True]
        for source in sources:
            decode.link(source)
        moves = some_moves("prefill 2", 30, parts=4)
        moves = [(source, pairs) for source, (_, pairs) in zip(sources * 2, moves)]
        asyncio.run(decode.migrate(*moves))
        decode.expect(*moves)
    sync("moved")


def test_several_pools_migrate_from_two_engines_at_once() -> None:
    run_world(_two_at_once, 2, init=False, fresh=True)


def _outside(rank: int, size: int) -> None:
    engine = Engine(PAIR[rank])
    if rank == 0:
        engine.config.num_gpu_blocks *= 2  # the engine has half of the blocks named
    engine.link(PAIR[1 - rank], describes=False)
    if rank == 1:
        with pytest.raises(ValueError, match='outside of the remote region "0"'):
            asyncio.run(engine.migrate(("prefill", [(block, block) for block in range(128)])))
        engine.expect()
    sync("refused")


def test_blocks_outside_of_the_other_cache_are_refused_and_none_is_read() -> None:
    run_world(_outside, 2, init=False, fresh=True)


def _renewed(rank: int, size: int) -> None:
    engine = Engine(PAIR[rank])
    engine.link(PAIR[1 - rank])
    before, between, after = some_moves("prefill", 16, parts=3)
    if rank == 1:
        asyncio.run(engine.migrate(before))
    sync("used")
    if rank == 0:
        del engine.cache  # all steps of LMDeploy's sleep()
    sync("freed")
    if rank == 0:
        engine = Engine("prefill")
    else:
        with pytest.raises(dist.DistBackendError, match="failed: .* has been closed"):
            asyncio.run(engine.migrate(between))
        engine.expect(before)
    engine.link(PAIR[1 - rank], attempt=1)
    if rank == 1:
        asyncio.run(engine.migrate(after))
        engine.expect(before, after)
    sync("moved")


def test_freed_cache_fails_the_migration_and_a_new_one_is_linked_in_its_place() -> None:
    run_world(_renewed, 2, init=False, fresh=True)


def _killed_peer(rank: int, size: int, early: bool) -> None:
    if rank == 1:
        _migrate_from_the_killed(early)
        return
    engine = Engine(["prefill", "", "prefill 2"][rank])
    engine.link("decode")
    if rank == 0:
        tell("pid", str(os.getpid()))
        signal.pause()
    sync("failed", 2)
    successor = Engine("prefill")
    successor.link("decode", attempt=1)
    sync("moved", 2)


def _migrate_from_the_killed(early: bool) -> None:
    decode = Engine("decode")
    for other in ("prefill", "prefill 2"):
        decode.link(other)
    pid = int(await_key("pid"))
    *blocks, elsewhere = some_moves("prefill 2", 16, parts=4)
    first, lost, later = [("prefill", pairs) for _, pairs in blocks]
    if not early:
        asyncio.run(decode.migrate(first))

    async def killed_meanwhile() -> None:
        send_signal(0, signal.SIGSTOP)  # the stopped engine can't answer a new connection
        migration = asyncio.create_task(decode.migrate(lost))
        await asyncio.sleep(0)  # the read is posted now, and a thread waits for the end
        send_signal(0, signal.SIGKILL)
        await migration

    if not early:
        send_signal(0, signal.SIGKILL)
        await_death(0)
    with pytest.raises(dist.DistBackendError, match=f"of pid {pid} on .* failed: "):
        asyncio.run(killed_meanwhile() if early else decode.migrate(lost))
    asyncio.run(decode.migrate(elsewhere))
    sync("failed", 2)
    decode.link("prefill", attempt=1)
    asyncio.run(decode.migrate(later))
    decode.expect(*[] if early else [first], elsewhere, later)
    sync("moved", 2)


@pytest.mark.parametrize("early", [True, False], ids=["while_it_is_asked", "after_it_was_used"])
def test_killed_engine_fails_its_own_migrations_only_and_may_come_back(early: bool) -> None:
    results = run_world(_killed_peer, 3, early, env=IN_THREAD, init=False, may_die=[0])
    assert isinstance(results[0], Died)
