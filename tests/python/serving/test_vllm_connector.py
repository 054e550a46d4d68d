"""DlslimeConnector under vLLM's own scheduler: prefill's blocks are read into decode's.

Real, byte for byte from vLLM's wheel (`vllm_files`): Scheduler, with KVCacheManager, Request and
SchedulerOutput; KVConnectorFactory, which finds the connector by its configuration, a real
KVTransferConfig; KVConnectorBase_V1 with all its definitions; the layouts of the KV cache and the
views of its layers; KVConnectorOutput, ModelRunnerOutput and KVOutputAggregator.

Stand-ins: `vllm_files` lists the modules. VllmConfig and SamplingParams are namespaces with the
attributes used; each connector is told its rank; EngineCoreOutput keeps its fields, as msgspec is a
stand-in. `vllm_engine` is the engine's loop and, instead of a model, writes a pattern of the tokens
into the cache. Messages between a scheduler and its workers are pickled, and messages from prefill
to decode are JSON, as in vLLM.
"""

from __future__ import annotations

import base64
import json
import signal
import zlib
from typing import Any
from unittest import mock

import pytest
import torch

import gpus
from harness import Died, await_death, await_key, dlslime_only, run_world, send_signal, sync, tell
from test_without_nic import hosts
from vllm_engine import BLOCK, Engine, cache_config
from vllm_files import unpack

PREFILL: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
SALT = sum(b"prefill")
LENGTHS = [30, 5, 64, 1, 17, 32]  # of prompts

# Processes with vLLM imported are used only for vLLM: the environment is their own.
OWN = {"VLLM_LOGGING_LEVEL": "ERROR"}

pytestmark = [dlslime_only, pytest.mark.usefixtures("_vllm")]


@pytest.fixture(scope="session")
def _vllm() -> None:
    unpack()


def prompt_of(number: int, length: int) -> list[int]:
    return [(number * 37 + at * 3) % 97 for at in range(length)]


def prefill(lengths: list[int], **options: Any) -> Engine:
    """Return an engine that has computed prompts, and has told decode how to read the blocks."""
    engine = Engine("prefill", "kv_producer", 64, **options)
    for number, length in enumerate(lengths):
        engine.add(f"p{number}", prompt_of(number, length), dict(PREFILL))
    engine.run(lambda: len(engine.answers) == len(lengths))
    answers = [engine.answers[f"p{number}"] for number in range(len(lengths))]
    tell("answers", json.dumps(answers))
    return engine


def answers() -> list[dict[str, Any]]:
    return json.loads(await_key("answers"))


def _moved(rank: int, size: int, devices: list[str], options: dict[str, Any]) -> None:
    options["device"] = devices[rank]
    if devices[rank] == "cuda":
        gpus.use(rank)
    if rank == 0:
        engine = prefill(LENGTHS, **options)
        assert len(engine.scheduler.requests) == len(LENGTHS)  # kept until read by decode
        engine.run(engine.idle)
        assert engine.sent == {f"p{number}": 1 for number in range(len(LENGTHS))}
        return
    engine = Engine("decode", "kv_consumer", 80, **options)
    elsewhere = engine.add("local", prompt_of(9, 11), None, tokens=40)
    engine.step()  # takes the first blocks, so that all requests get other places than at prefill
    requests = [
        engine.add(f"d{number}", prompt_of(number, len_), params, tokens=30)
        for (number, len_), params in zip(enumerate(LENGTHS), answers())
    ]
    engine.run(lambda: len(engine.received) == len(LENGTHS))
    engine.step()
    for request, params in zip(requests, answers()):
        assert engine.blocks_of(request.request_id) != params["remote_block_ids"]
        # vLLM computes the last token of a prompt again, to sample the next.
        engine.expect(request, SALT, 0, request.num_prompt_tokens - 1)
        engine.expect(request, engine.salt, request.num_prompt_tokens - 1, request.num_tokens - 1)
    engine.expect(elsewhere, engine.salt, 0, 11)
    _nothing_else(engine, [elsewhere, *requests])
    engine.run(engine.idle)
    assert engine.received == {f"d{number}": 1 for number in range(len(LENGTHS))}
    assert not engine.invalid


def _nothing_else(engine: Engine, requests: list[Any]) -> None:
    used = {block for request in requests for block in engine.blocks_of(request.request_id)}
    for caches in engine.caches:
        for cache in caches.values():
            parts = cache.unflatten(0, (engine.cache_config.num_blocks, -1))
            others = [block for block in range(len(parts)) if block not in used]
            assert torch.count_nonzero(parts.cpu()[others]) == 0


@pytest.mark.parametrize(
    ("layout", "ranks", "kernel_block"),
    [
        ("LBHNC", 1, BLOCK),
        ("LBNHC", 2, BLOCK),  # tensor-parallel
        ("LBHNC", 1, BLOCK // 2),  # the kernel's blocks are smaller
        ("BLNHC", 1, BLOCK),  # a block has all layers
        ("LHBNC", 1, BLOCK),  # a block is in pieces
    ],
)
def test_blocks_of_all_layers_go_to_other_places(
    layout: str, ranks: int, kernel_block: int
) -> None:
    options = {"layout": layout, "ranks": ranks, "kernel_block": kernel_block}
    run_world(_moved, 2, ["cpu", "cpu"], options, init=False, env=OWN)


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize("devices", [["cuda", "cuda"], ["cuda", "cpu"], ["cpu", "cuda"]])
def test_blocks_go_from_gpu_to_gpu_and_to_cpus_and_back(devices: list[str]) -> None:
    run_world(_moved, 2, devices, {"layout": "BLNHC", "ranks": 2}, init=False, env=OWN)


def test_blocks_go_between_hosts_without_rdma() -> None:
    env = [{**host, **OWN} for host in hosts(2)]
    results = run_world(_moved, 2, ["cpu", "cpu"], {}, init=False, env=env, with_output=True)
    assert any("go over TCP" in output for _, output in results)


def _cached(rank: int, size: int) -> None:
    if rank == 0:
        engine = prefill([30], caching=True)
        engine.run(engine.idle)
        engine.add("again", prompt_of(0, 30), dict(PREFILL))
        engine.run(lambda: "again" in engine.answers)
        tell("again", json.dumps(engine.answers["again"]))
        engine.run(engine.idle)
        return
    engine = Engine("decode", "kv_consumer", 80, caching=True)
    engine.add("first", prompt_of(0, 30), answers()[0], tokens=1)
    engine.run(engine.idle)
    request = engine.add("d", prompt_of(0, 30), json.loads(await_key("again")), tokens=9)
    engine.step()
    (load,) = engine.planned.kv_connector_metadata.plan.loads.values()
    assert (len(load.here), load.there) == (1, load.source.blocks[7:])  # decode has 28 tokens
    engine.run(lambda: engine.received["d"])
    engine.step()
    engine.expect(request, SALT, 0, 29)
    engine.run(engine.idle)


def test_what_decode_has_cached_is_not_read_again() -> None:
    run_world(_cached, 2, init=False, env=OWN)


def _recomputed(engine: Engine, name: str, params: Any, length: int) -> Any:
    """Check that decode reports the blocks of a failed load, and that vLLM computes the blocks."""
    request = engine.add(name, prompt_of(0, length), params, tokens=9)
    engine.run(lambda: engine.received[name])
    assert len(engine.invalid) == -(-length // BLOCK)
    engine.invalid.clear()
    engine.run(lambda: request.num_tokens > length)
    engine.expect(request, engine.salt, 0, length)
    return request


def _killed(rank: int, size: int, early: bool) -> None:
    if rank == 0:
        engine = prefill([30, 30])
        tell("ready")
        signal.pause()
        del engine  # only now
    engine = Engine("decode", "kv_consumer", 80)
    first, second = answers()
    await_key("ready")
    if early:
        send_signal(0, signal.SIGSTOP)  # so that the load is under way
        engine.add("d", prompt_of(0, 30), second)
        engine.step()
        assert not engine.received
    else:
        engine.add("d", prompt_of(0, 30), second)
        engine.run(engine.idle)
    send_signal(0, signal.SIGKILL)
    await_death(0)
    if early:
        engine.run(engine.idle)
        assert len(engine.invalid) == 8
        engine.invalid.clear()
    _recomputed(engine, "again", first, 30)
    engine.run(engine.idle)
    successor = Engine("prefill", "kv_producer", 64)
    successor.add("p", prompt_of(0, 30), dict(PREFILL))
    successor.run(lambda: successor.answers)
    request = engine.add("last", prompt_of(0, 30), successor.answers["p"], tokens=9)
    engine.run(lambda: engine.received["last"])
    engine.expect(request, SALT, 0, 29)
    # With asynchronous scheduling a worker may hear of a read before the request's end.
    (worker,) = successor.workers
    engine.run(
        lambda: worker.get_finished(set()) == (set(), set()) and worker._worker._leases._early
    )
    successor.run(successor.idle)
    assert successor.sent == {"p": 1}


@pytest.mark.parametrize("early", [True, False], ids=["while_it_is_asked", "after_it_was_used"])
def test_killed_prefill_fails_its_loads_and_decode_computes(early: bool) -> None:
    assert isinstance(run_world(_killed, 2, early, init=False, may_die=[0])[0], Died)


def _expired(rank: int, size: int) -> None:
    if rank == 0:
        engine = prefill([30], lease=0.2)
        engine.run(engine.idle)
        assert engine.sent == {"p0": 1}
        tell("given up")
        sync("tried")
        engine.step()
        assert engine.sent == {"p0": 1}
        return
    engine = Engine("decode", "kv_consumer", 80)
    await_key("given up")
    _recomputed(engine, "d", answers()[0], 30)
    sync("tried")


def test_blocks_that_no_peer_fetches_are_freed_and_a_late_load_fails() -> None:
    run_world(_expired, 2, init=False, env=OWN)


def _aborted(rank: int, size: int) -> None:
    if rank == 0:
        engine = prefill([30, 30])
        engine.run(engine.idle)
        assert engine.sent == {"p0": 1, "p1": 1}
        return
    engine = Engine("decode", "kv_consumer", 80)
    from vllm.v1.request import RequestStatus

    for name, params, steps in zip("ab", answers(), (0, 1)):
        engine.add(name, prompt_of(0, 30), params)
        for _ in range(steps):
            engine.step()
        engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.run(engine.idle)
    engine.step()
    assert engine.received == {"b": 1}


def test_request_aborted_at_decode_frees_the_blocks_at_prefill() -> None:
    run_world(_aborted, 2, init=False, env=OWN)


def _refused(rank: int, size: int) -> None:
    from dlslime_backend.integrations import _vllm_layout as layout
    from dlslime_backend.integrations import _vllm_scheduler as scheduler

    producer = Engine("prefill", "kv_producer", 64, ranks=2)
    producer.add("p", prompt_of(0, 30), dict(PREFILL))
    producer.run(lambda: producer.answers)
    params = json.loads(json.dumps(producer.answers["p"]))
    with pytest.raises(ValueError, match="tensor_parallel_size 2, and this engine 1"):
        scheduler.Source.decode(params, 1)
    decode = Engine("decode", "kv_consumer", 80)
    for number, wrong in enumerate((params, {**params, "dlslime": None})):
        with mock.patch.object(scheduler._logger, "error") as error:
            request = decode.add(f"d{number}", prompt_of(0, 30), dict(wrong), tokens=9)
            decode.run(lambda request=request: request.num_tokens > 30)
            error.assert_called_once()
        decode.expect(request, decode.salt, 0, 30)
    assert not decode.received
    other = Engine("other layout", "kv_producer", 64, layout="LBNHC")
    other.add("p", prompt_of(0, 30), dict(PREFILL))
    other.run(lambda: other.answers)
    _recomputed(decode, "other", other.answers["p"], 30)
    for text in ("", "bm9uZQ==", "é"):
        with pytest.raises(ValueError, match="no description of a KV cache"):
            layout.Cache.decode(text)


def test_engines_that_do_not_fit_are_refused_and_decode_computes() -> None:
    run_world(_refused, 1, init=False, env=OWN)


def _malformed(rank: int, size: int) -> None:
    producer = Engine("prefill", "kv_producer", 64)
    producer.add("p", prompt_of(0, 30), dict(PREFILL))
    producer.run(lambda: producer.answers)
    params = json.loads(json.dumps(producer.answers["p"]))
    decode = Engine("decode", "kv_consumer", 80)
    request = decode.add("d", prompt_of(0, 30), {**params, "remote_num_tokens": 1e999}, tokens=9)
    decode.run(lambda: request.num_tokens > 30)
    decode.expect(request, decode.salt, 0, 30)
    assert not decode.received
    brackets = base64.b64encode(zlib.compress(b"[" * 292)).decode()
    _recomputed(decode, "nested", {**params, "dlslime": [brackets]}, 30)
    loaded = decode.add("loaded", prompt_of(0, 30), params, tokens=9)
    decode.run(lambda: decode.received["loaded"])
    decode.step()
    decode.expect(loaded, SALT, 0, 29)


def test_malformed_requests_are_computed_and_others_are_loaded() -> None:
    run_world(_malformed, 1, init=False, env=OWN)


def _not_supported(rank: int, size: int) -> None:
    engine = Engine("prefill", "kv_producer", 64)
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from dlslime_backend.integrations import _vllm_layout as layout
    from dlslime_backend.integrations.vllm import _require_plain

    config = engine.cache_config
    meta = {name: cache.to("meta") for name, cache in engine.caches[0].items()}
    with pytest.raises(ValueError, match="is on meta: only tensors on CPUs and CUDA GPUs"):
        layout.layers_of(meta, config)
    with pytest.raises(ValueError, match="registered already"):
        engine.workers[0].register_kv_caches(engine.caches[0])
    with pytest.raises(ValueError, match="0 of its dimensions can be that of 64 blocks"):
        layout.layers_of({name: torch.zeros(63, 5) for name in meta}, config)
    two = cache_config(64, KVCacheLayout.LBHNC)
    two.kv_cache_groups = two.kv_cache_groups * 2
    parallel = engine.scheduler.parallel_config
    with pytest.raises(ValueError, match="2 KV cache groups"):
        _require_plain(parallel, two)
    parallel.pipeline_parallel_size = 2
    with pytest.raises(ValueError, match="pipeline_parallel_size is 2"):
        _require_plain(parallel, config)
    engine.workers[0].shutdown()
    with pytest.raises(ValueError, match="shut down"):
        engine.workers[0].get_finished(set())


def test_what_is_not_supported_is_refused_with_a_clear_text() -> None:
    run_world(_not_supported, 1, init=False, env=OWN)
