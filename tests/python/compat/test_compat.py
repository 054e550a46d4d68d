"""Python APIs of other libraries on top of dlslime, as seen by programs written for them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from typing import Any
from unittest import mock

import pytest
import torch

from dlslime_backend import memory
from dlslime_backend.compat import dlslime as upstream
from harness import await_key, dlslime_only, run_world, sync, tell

PAGE = 8192
PAGES = 256

pytestmark = dlslime_only


def _swap(rank: int, info: dict[str, Any]) -> dict[str, Any]:
    """Exchange JSON with the other rank, as a framework would do over HTTP."""
    tell(f"info of {rank}", json.dumps(info))
    theirs: dict[str, Any] = json.loads(await_key(f"info of {1 - rank}"))
    return theirs


def _pair(rank: int, kind: str = "RDMAEndpoint") -> tuple[Any, list[torch.Tensor]]:
    """Make an endpoint as LMDeploy does: a region for each key, info by JSON, connect."""
    if kind == "RDMAEndpoint":
        name = upstream.available_nic()[rank % len(upstream.available_nic())]
        endpoint: Any = upstream.RDMAEndpoint(device_name=name, ib_port=1, link_type="RoCE")
    else:
        endpoint = upstream.NVLinkEndpoint()
    caches = [
        torch.full((PAGES, PAGE), 10 * rank + key, dtype=torch.uint8).contiguous()
        for key in range(2)
    ]
    for key, cache in enumerate(caches):
        handle = endpoint.register_memory_region(
            key, cache.data_ptr(), cache.storage_offset(), cache.nbytes
        )
        assert handle == key
    endpoint.connect(_swap(rank, endpoint.endpoint_info()))
    return endpoint, caches


def _assignments(pages: list[int]) -> list[tuple[int, int, int, int, int]]:
    return [(key, key, p * PAGE, (PAGES - 1 - p) * PAGE, PAGE) for key in range(2) for p in pages]


def _migrate(rank: int, size: int, kind: str) -> None:
    endpoint, caches = _pair(rank, kind)
    if rank == 0:
        for key, cache in enumerate(caches):
            cache[:] = torch.arange(PAGES, dtype=torch.uint8)[:, None] + key
    sync("filled")
    if rank == 1:
        pages = list(range(0, PAGES, 2))
        assert endpoint.read(_assignments(pages)).wait() == 0
        for key, cache in enumerate(caches):
            for page in pages:  # the target's offset is the peer's, the source's is local
                assert bool((cache[PAGES - 1 - page] == (page + key) % 256).all())
                assert bool((cache[PAGES - 2 - page] == 10 + key).all()) or page == PAGES - 1
    sync("read")
    endpoint.shutdown()
    endpoint.shutdown()


@pytest.mark.parametrize("kind", ["RDMAEndpoint", "NVLinkEndpoint"])
def test_pages_of_several_regions_migrate_by_one_read(kind: str) -> None:
    run_world(_migrate, 2, kind, init=False)


def _write_and_tell(rank: int, size: int) -> None:
    endpoint, caches = _pair(rank)
    if rank == 0:
        assignment = upstream.Assignment(0, 1, 5 * PAGE, 7 * PAGE, PAGE)
        endpoint.write_with_imm([assignment], imm_data=1234).wait()
        assert endpoint.send((caches[0].data_ptr(), 0, 100)).wait() == 0
    else:
        told = endpoint.imm_recv()
        told.wait()
        assert told.imm_data() == 1234
        assert bool((caches[1][5] == 0).all())
        assert bool((caches[1][6] == 11).all())
        assert endpoint.recv((caches[1].data_ptr() + PAGE, 0, 100)).wait() == 0
        assert bool((caches[1][1][:100] == 0).all())
        assert bool((caches[1][1][100:] == 11).all())
    sync("told")
    endpoint.shutdown()


def test_immediate_comes_after_the_written_bytes_and_chunks_are_sent() -> None:
    run_world(_write_and_tell, 2, init=False)


def _many(rank: int, size: int) -> None:
    endpoint, caches = _pair(rank)
    sync("connected")
    if rank == 1:
        pieces = [(0, 0, i * 64, i * 64, 64) for i in reversed(range(20_000))]
        assert endpoint.read(pieces).wait() == 0
        assert bool((caches[0].view(-1)[: 20_000 * 64] == 0).all())

        async def several() -> None:
            loop = asyncio.get_running_loop()
            futures = [endpoint.read(_assignments([page])) for page in range(16)]
            await asyncio.gather(*(loop.run_in_executor(None, f.wait) for f in futures))

        asyncio.run(several())
    sync("over")
    endpoint.shutdown()


def test_twenty_thousand_assignments_and_several_migrations_at_a_time() -> None:
    run_world(_many, 2, init=False)


def _wrong(rank: int, size: int) -> None:
    endpoint, caches = _pair(rank)
    if rank == 1:
        with pytest.raises(ValueError, match="no remote region 9"):
            endpoint.read([(0, 9, 0, 0, 1)])
        with pytest.raises(ValueError, match=r"outside of the remote region \"0\""):
            endpoint.read([(0, 0, PAGES * PAGE, 0, 1)])
        with pytest.raises(ValueError, match="no process has memory there"):
            endpoint.send((0, 0, 1))
        with pytest.raises(ValueError, match="the original ignores it"):
            endpoint.send((caches[0].data_ptr(), 1, 1))
        with pytest.raises(ValueError, match="4 fields"):
            endpoint.read([(0, 0, 0, 1)])
        with pytest.raises(ValueError, match="not of dlslime_backend"):
            upstream.RDMAEndpoint().connect({"rdma_info": {}})
        assert bool((caches[0] == 10).all())
    sync("refused")
    endpoint.shutdown()


def test_unknown_keys_ranges_and_peers_are_refused_at_the_call() -> None:
    run_world(_wrong, 2, init=False)


def _replaced(rank: int, size: int) -> None:
    endpoint, caches = _pair(rank)
    other = torch.full_like(caches[0], 77)
    assert endpoint.register_memory_region(0, other.data_ptr(), 0, other.nbytes) == 0
    assert endpoint.mr_info()["mr_0"]["addr"] == other.data_ptr()
    sync("replaced")
    with mock.patch.object(
        memory.Region, "deregister", autospec=True, side_effect=memory.Region.deregister
    ) as deregister:
        endpoint.shutdown()
        endpoint.shutdown()
    assert len(deregister.call_args_list) == 2  # the replaced region is released already


def test_what_was_registered_under_a_key_before_is_released() -> None:
    run_world(_replaced, 2, init=False)


def test_one_key_that_is_registered_200_times_keeps_one_region() -> None:
    endpoint = upstream.RDMAEndpoint()
    cache = torch.zeros(4 * PAGE, dtype=torch.uint8)
    handles = {
        endpoint.register_memory_region(7, cache.data_ptr(), offset, PAGE)
        for offset in [0, PAGE] * 100
    }
    assert handles == {0}
    assert endpoint._regions.count() == 1
    assert endpoint.mr_info()["mr_7"]["addr"] == cache.data_ptr() + PAGE
    endpoint.shutdown()


def test_same_address_is_the_same_region_under_another_name() -> None:
    endpoint = upstream.RDMAEndpoint()
    cache = torch.zeros(4 * PAGE, dtype=torch.uint8)
    first = endpoint.register_memory_region("first", cache.data_ptr(), 0, 2 * PAGE)
    assert endpoint.register_memory_region("second", cache.data_ptr(), 0, PAGE) == first == 0
    assert endpoint.register_memory_region("longer", cache.data_ptr(), 0, 4 * PAGE) == first
    assert endpoint.register_memory_region("other", cache.data_ptr(), PAGE, PAGE) == 1
    info = endpoint.mr_info()
    assert {info[name]["length"] for name in ("first", "second", "longer")} == {4 * PAGE}
    assert endpoint.unregister_memory_region("second") == 0
    assert list(endpoint.mr_info()) == ["other"]
    assert endpoint.unregister_memory_region("second") == -1
    endpoint.shutdown()
    with pytest.raises(ValueError, match="was shut down"):
        endpoint.register_memory_region("first", cache.data_ptr(), 0, PAGE)


def test_name_that_moves_to_a_longer_registration_releases_what_it_meant() -> None:
    endpoint = upstream.RDMAEndpoint()
    cache = torch.zeros(4 * PAGE, dtype=torch.uint8)
    endpoint.register_memory_region("one", cache.data_ptr(), 0, PAGE)
    endpoint.register_memory_region("two", cache.data_ptr(), 2 * PAGE, PAGE)
    assert endpoint.register_memory_region("two", cache.data_ptr(), 0, 2 * PAGE) == 0
    assert endpoint._regions.count() == 1
    endpoint.shutdown()


def test_pool_that_is_dropped_with_its_endpoints_gives_its_memory_back() -> None:
    pool = upstream.RDMAMemoryPool(upstream.RDMAContext())
    cache = torch.zeros(PAGE, dtype=torch.uint8)
    assert pool.register_memory_region(cache.data_ptr(), PAGE, "cache") == 0
    endpoint, regions = upstream.RDMAEndpoint(pool), pool.regions
    assert endpoint.get_pool() is pool
    del pool
    gc.collect()
    assert regions.count() == 1
    del endpoint
    gc.collect()
    assert regions.count() == 0


def _taken_back(rank: int, size: int) -> None:
    endpoint, _ = _pair(rank)
    sync("connected")
    if rank == 1:
        endpoint.read(_assignments([0])).wait()
    sync("read")
    if rank == 0:
        with mock.patch.object(
            memory.Region, "deregister", autospec=True, side_effect=memory.Region.deregister
        ) as deregister:
            assert endpoint.unregister_memory_region(0) == 0
        assert deregister.call_args == mock.call(mock.ANY)  # the call waits for the peer
        assert set(endpoint.mr_info()) == {"mr_1", "1"}
    sync("taken back")
    if rank == 1:
        with pytest.raises(Exception, match="deregistered"):
            endpoint.read([(0, 0, 0, 0, 1)]).wait()
    sync("over")
    endpoint.shutdown()


def test_region_that_is_taken_back_is_not_touched_after_the_return() -> None:
    run_world(_taken_back, 2, init=False)


def test_tcp_endpoints_have_immediates_too() -> None:
    one, other = upstream.TcpEndpoint(), upstream.TcpEndpoint()
    caches = [torch.full((PAGE,), value, dtype=torch.uint8) for value in range(2)]
    for endpoint, cache in zip((one, other), caches, strict=True):
        endpoint.register_memory_region("cache", cache.data_ptr(), 0, PAGE)
    one.connect(other.endpoint_info())
    other.connect(one.endpoint_info())
    assert one.write_with_imm([(0, 0, 10, 0, 20)], imm_data=-7).wait() == 0
    told = other.imm_recv()
    assert (told.wait(), told.imm_data()) == (0, -7)
    assert caches[1].tolist() == [1] * 10 + [0] * 20 + [1] * (PAGE - 30)
    with pytest.raises(ValueError, match="more than 32 bits"):
        one.write_with_imm([(0, 0, 0, 0, 1)], imm_data=1 << 32)
    one.shutdown()
    other.shutdown()


def _gone(rank: int, size: int) -> str:
    endpoint, _ = _pair(rank)
    sync("connected")
    if rank == 0:
        endpoint.shutdown()
    sync("gone")
    if rank == 0:
        sync("over")
        return ""
    with pytest.raises(Exception, match="closed|deregistered|no process answers") as failure:
        endpoint.read(_assignments([0])).wait()
    endpoint.shutdown()
    sync("over")
    return type(failure.value).__name__


def test_future_raises_when_the_peer_has_gone() -> None:
    assert run_world(_gone, 2, init=False)[1] in ("DistBackendError", "ValueError")


def _python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


IMPORT = "import torch, dlslime; print(dlslime.RDMAEndpoint.__module__)"


def test_name_of_the_original_is_provided_only_where_it_is_asked_for() -> None:
    assert _python(IMPORT, DLSLIME_PROVIDE="dlslime") == "dlslime_backend.compat.dlslime.endpoints"
    absent = "import torch, importlib.util; print(importlib.util.find_spec('dlslime'))"
    assert _python(absent, DLSLIME_PROVIDE="") == "None"


def test_installed_original_goes_first(tmp_path: Any) -> None:
    (tmp_path / "dlslime.py").write_text("class RDMAEndpoint: pass")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert _python(IMPORT, DLSLIME_PROVIDE="dlslime", PYTHONPATH=path) == "dlslime"


def test_unknown_name_is_warned_of_and_breaks_nothing() -> None:
    code = (
        "import warnings; warnings.simplefilter('always'); "
        "import contextlib, io, sys; sys.stderr = sys.stdout; import torch; print('torch works')"
    )
    output = _python(code, DLSLIME_PROVIDE="nonsense")
    assert "cannot provide 'nonsense'" in output
    assert "torch works" in output
