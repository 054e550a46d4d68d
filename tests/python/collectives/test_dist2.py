"""torch's newer ways to a group: _dist2, and the table of plugins."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _dist2

import nodes
from harness import (
    BACKEND,
    PATIENCE,
    all_routes,
    await_key,
    context,
    dlslime_only,
    run_world,
    sync,
    tell,
)
from patterns import blank, expect_pattern, pattern
from test_entry_point import ALONE, GLOO_ONLY, expect_done, run_python
from test_groups import exchange

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)  # torch wants the name of an accelerator; no GPU is used
SECONDS = datetime.timedelta(seconds=20 * PATIENCE)


def exchange_in(group: dist.ProcessGroup, seed: int = 0, nbytes: int = 1000) -> None:
    """Exchange a message with every other rank of a group, possibly unknown to torch."""
    rank, others = group.rank(), [r for r in range(group.size()) if r != group.rank()]
    received = {r: blank(nbytes) for r in others}
    works = [group.recv([tensor], r, 0) for r, tensor in received.items()]
    works += [group.send([pattern(nbytes, rank + seed)], r, 0) for r in others]
    for work in works:
        work.wait()
    for r, tensor in received.items():
        expect_pattern(tensor, r + seed, f"from {r}")


def expect_usable(group: dist.ProcessGroup, size: int, seed: int = 0) -> None:
    """Check that messages and collectives go through."""
    assert group.size() == size
    exchange_in(group, seed)
    exchange_in(group, seed + 1, 300_000)
    tensor = torch.full((3,), float(group.rank() + 1))
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [size * (size + 1) / 2] * 3
    tensor = torch.full((2,), float(group.rank()))
    group.broadcast(tensor, root=0).wait()
    assert tensor.tolist() == [0, 0]
    group.barrier().wait()


def expect_independent(groups: list[dist.ProcessGroup]) -> None:
    """Check that groups keep apart messages of equal tags received in another order."""
    received = [blank(100) for _ in groups]
    if groups[0].rank() == 0:
        works = [group.send([pattern(100, seed)], 1, 7) for seed, group in enumerate(groups)]
        for work in works:
            work.wait()
    else:
        for seed, group in reversed(list(enumerate(groups))):
            group.recv([received[seed]], 0, 7).wait()
            expect_pattern(received[seed], seed)
    for seed, group in enumerate(groups):
        expect_usable(group, 2, 10 * seed)


# --- torch.distributed._dist2 ---------------------------------------------------------------------


@contextmanager
def dist2_environment(rank: int, size: int) -> Iterator[None]:
    """Set the variables of _dist2.new_group; rank 0 hosts the store while its groups live."""
    if rank == 0 and not context().control.check(["port"]):
        tell("port", str(nodes.free_port()))
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": nodes.ADDRESS,
        "MASTER_PORT": await_key("port"),
    }
    with mock.patch.dict(os.environ, variables):
        yield


def _dist2_group(rank: int, size: int) -> None:
    with dist2_environment(rank, size):
        group = _dist2.new_group(BACKEND, timeout=SECONDS, device="cpu")
    assert group.rank() == rank
    assert not dist.is_initialized()
    expect_usable(group, size)
    assert group._get_backend(CPU).name() == BACKEND
    assert group._get_backend(CPU).options._timeout == SECONDS
    assert _dist2.current_process_group() is None
    with _dist2.process_group(group):
        assert _dist2.current_process_group() is group
    sync("used")
    group.shutdown()


@all_routes
def test_dist2_makes_a_group_of_its_own(env: dict[str, str]) -> None:
    run_world(_dist2_group, 2, env=env, init=False)


def _dist2_collectives(rank: int, size: int) -> None:
    """The collectives of torch's own test of _dist2, each with a time-out of its own."""
    with dist2_environment(rank, size):
        group = _dist2.new_group(BACKEND, timeout=SECONDS, device=CPU)
    whole = torch.full((4,), rank + 1.0)
    gathered = [torch.zeros(4) for _ in range(size)]
    group.allgather(gathered, whole, timeout=SECONDS).wait()
    assert [t[0].item() for t in gathered] == [r + 1 for r in range(size)]
    gathered = [torch.zeros(4) for _ in range(size)] if rank == 0 else []
    group.gather(gathered, whole, root=0, timeout=SECONDS).wait()
    assert [t[0].item() for t in gathered] == [r + 1 for r in range(size)][: len(gathered)]
    parts = [torch.full((4,), r + 1.0) for r in range(size)] if rank == 0 else []
    part = torch.zeros(4)
    group.scatter(part, parts, root=0, timeout=SECONDS).wait()
    assert part.tolist() == [rank + 1] * 4
    total = torch.ones(4)
    group.reduce(total, root=0, op=_dist2.ReduceOp.SUM, timeout=SECONDS).wait()
    assert rank != 0 or total.tolist() == [size] * 4
    parts = [torch.full((4,), r + 1.0) for r in range(size)]
    group.reduce_scatter(part, parts, op=_dist2.ReduceOp.SUM, timeout=SECONDS).wait()
    assert part.tolist() == [size * (rank + 1)] * 4
    group.barrier(timeout=SECONDS).wait()
    sync("used")
    group.shutdown()


def test_collectives_of_a_dist2_group() -> None:
    run_world(_dist2_collectives, 2, init=False)


def _two_dist2_groups(rank: int, size: int) -> None:
    """Two groups have a common store, and no name given by torch."""
    with dist2_environment(rank, size):
        groups = [_dist2.new_group(BACKEND, timeout=SECONDS, device="cpu") for _ in range(2)]
    expect_independent(groups)
    sync("used")
    for group in groups:
        group.shutdown()


@dlslime_only  # Gloo may take the addresses of the first group for those of the second
@all_routes
def test_two_dist2_groups_over_one_store_are_independent(env: dict[str, str]) -> None:
    run_world(_two_dist2_groups, 2, env=env, init=False)


def _dist2_group_again(rank: int, size: int) -> None:
    """Keys of earlier groups are still in the store, and a rank comes late each time."""
    groups = []  # the groups keep the store alive
    for life in range(3):
        if rank == 1 and life > 0:
            await_key(f"posted{life}")
        with dist2_environment(rank, size):
            groups.append(_dist2.new_group(BACKEND, timeout=SECONDS, device="cpu"))
        work = groups[-1].send([pattern(100, life)], 1 - rank, 0)
        if rank == 0:
            tell(f"posted{life}")
        received = blank(100)
        groups[-1].recv([received], 1 - rank, 0).wait()
        work.wait()
        expect_pattern(received, life)
        sync(f"used{life}")
        groups[-1].shutdown()
        sync(f"left{life}")


@dlslime_only
def test_dist2_groups_one_after_the_other_in_one_store() -> None:
    run_world(_dist2_group_again, 2, init=False)


def _dist2_beside_the_default_group(rank: int, size: int) -> None:
    exchange(None)
    with dist2_environment(rank, size):
        group = _dist2.new_group(BACKEND, timeout=SECONDS, device="cpu")
    expect_usable(group, size, 5)
    exchange(None, 1)
    dist.barrier()
    group.shutdown()
    exchange(None, 2)


def test_dist2_group_beside_a_default_group() -> None:
    run_world(_dist2_beside_the_default_group, 2)


def _dist2_options(rank: int, size: int) -> None:
    import dlslime_backend

    with dist2_environment(rank, size):
        group = _dist2.new_group(
            "dlslime", timeout=SECONDS, device="cuda:0", route="gloo", fallback="allow"
        )
        assert {device.type for device in group._device_types} >= {"cpu", "cuda"}
        options = group._get_backend(CPU).options
        assert isinstance(options, dlslime_backend.Options)
        assert (options.route, options.fallback) == ("gloo", "allow")
        with pytest.raises((KeyError, TypeError), match="no_such_option"):
            _dist2.new_group("dlslime", timeout=SECONDS, device="cpu", no_such_option=1)
        with pytest.raises(ValueError, match="no_such_route"):
            _dist2.new_group("dlslime", timeout=SECONDS, device="cpu", route="no_such_route")
        for timeout in (datetime.timedelta(0), datetime.timedelta.max):
            with pytest.raises(ValueError, match="(?i)time-?out"):
                _dist2.new_group("dlslime", timeout=timeout, device="cpu")
    exchange_in(group)
    sync("used")
    group.shutdown()


@dlslime_only
def test_dist2_takes_the_options_of_a_group() -> None:
    run_world(_dist2_options, 2, init=False)


DIST2 = """
import os, sys, datetime, torch, torch.distributed._dist2 as dist2
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
assert "dlslime_backend._C" not in sys.modules, "loaded before the first use"
group = dist2.new_group("dlslime", timeout=datetime.timedelta(seconds=20), device="cpu")
received = torch.zeros(3)
works = [group.send([torch.ones(3)], 0, 0), group.recv([received], 0, 0)]
for work in works:
    work.wait()
assert received.tolist() == [1, 1, 1]
print("done")
"""


@dlslime_only
def test_dist2_finds_it_without_an_import() -> None:
    expect_done(run_python(DIST2))


@dlslime_only
@pytest.mark.parametrize("first", ["torch.distributed._dist2", "dlslime_backend"])
def test_dist2_without_autoload_needs_the_import(first: str) -> None:
    second = {"dlslime_backend"} | {"torch.distributed._dist2"} - {first}
    code = "\n".join(f"import {module}" for module in [first, *second]) + DIST2.replace(
        'assert "dlslime_backend._C" not in sys.modules, "loaded before the first use"\n', ""
    )
    expect_done(run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))


@dlslime_only
def test_torch_without_dist2_finds_the_name_all_the_same() -> None:
    """torch says that _dist2 may be deleted."""
    code = "import sys; sys.modules['torch.distributed._dist2'] = None\n" + ALONE
    expect_done(run_python(code))


# --- Backend._plugins -----------------------------------------------------------------------------

READS = {
    "item": 'plugin = table["DLSLIME"]',
    "get": 'plugin = table.get("DLSLIME")',
    "in": 'assert "DLSLIME" in table; plugin = table["DLSLIME"]',
    "get with a default": 'plugin = table.get("DLSLIME", None); assert plugin is not None',
}
PLUGIN = """
import datetime, sys, torch, torch.distributed as dist
table = dist.Backend._plugins
READ
assert "dlslime_backend._C" not in sys.modules, "loaded before the first use"
assert plugin.extended_api
from torch.distributed import distributed_c10d as c10d
options = c10d._DistributedBackendOptions()
options.store = dist.HashStore()
options.group_rank, options.group_size = 0, 1
options.timeout = datetime.timedelta(seconds=20)
options.group_id = "mine"
options.global_ranks_in_group = [0]
backend = plugin.creator_fn(options, None)
assert backend.name() == "dlslime"
received = torch.zeros(3)
works = [backend.send([torch.ones(3)], 0, 0), backend.recv([received], 0, 0)]
for work in works:
    work.wait()
assert received.tolist() == [1, 1, 1]
assert list(table) == ["DLSLIME"]
dist.init_process_group("cpu:gloo,cuda:dlslime", store=dist.HashStore(), rank=0, world_size=1)
assert dist.group.WORLD._get_backend(torch.device("cuda", 0)).name() == "dlslime"
print("done")
"""


@dlslime_only
@pytest.mark.parametrize("how", READS)
def test_plugin_is_in_torchs_table_before_its_first_use(how: str) -> None:
    expect_done(run_python(PLUGIN.replace("READ", READS[how])))


@dlslime_only
def test_questions_for_other_plugins_change_nothing() -> None:
    """torch sees no plugin before the first use: a plugin would change composite groups."""
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "table = dist.Backend._plugins\n"
        "assert not table and len(table) == 0 and list(table) == [] and not table.keys()\n"
        'assert "OTHER" not in table and table.get("OTHER") is None and table.get("NCCL") is None\n'
        "try:\n"
        '    table["OTHER"]\n'
        "except KeyError:\n"
        "    pass\n"
        "assert isinstance(table, dict) and dict(table) == {} and table == {}\n"
    ) + GLOO_ONLY.replace(
        'print("done")', 'assert "dlslime_backend._C" not in sys.modules; print("done")'
    )
    expect_done(run_python(code))


@dlslime_only
def test_other_plugins_are_registered_beside_it() -> None:
    code = (
        "import torch, torch.distributed as dist\n"
        "make = lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size)\n"
        'dist.Backend.register_backend("other", make, devices=["cpu"])\n'
        'assert list(dist.Backend._plugins) == ["OTHER"]\n'
        'assert dist.Backend._plugins["DLSLIME"].extended_api\n'
        'assert sorted(dist.Backend._plugins) == ["DLSLIME", "OTHER"]\n'
        'dist.init_process_group("other", store=dist.HashStore(), rank=0, world_size=1)\n'
        "dist.all_reduce(torch.ones(1))\n"
        "dist.destroy_process_group()\n"
    ) + ALONE.replace("import sys, torch, torch.distributed as dist\n", "import sys\n")
    expect_done(run_python(code))
