"""Arguments of collectives refused at the call, also before the ranks of a group have met."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._C._distributed_c10d as _c10d
import torch.distributed as dist

from ending import NEVER, SOON, add_up
from harness import await_key, dlslime_only, run_world, tell

pytestmark = dlslime_only


def _with(options: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _bad_calls() -> dict[str, Callable[[Any], Any]]:
    """Return calls of rank 0 of two that Gloo refuses at the call."""
    x, xy, one = torch.ones(1), torch.ones(2), torch.ones(1, dtype=torch.int32)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (1,))
    gathered, scattered = _c10d.AllgatherOptions(), _c10d.ReduceScatterOptions()
    exchanged = _c10d.AllToAllOptions()

    def rooted(options: Any, root: int = 0, **values: Any) -> Any:
        return _with(options, rootRank=root, **values)

    broadcast, gather = dist.BroadcastOptions, dist.GatherOptions
    return {
        "broadcast, root": lambda g: g.broadcast([x], rooted(broadcast(), 7)),
        "broadcast, tensor": lambda g: g.broadcast([x], rooted(broadcast(), rootTensor=3)),
        "broadcast, sizes": lambda g: g.broadcast([x, xy], rooted(broadcast(), rootTensor=0)),
        "allreduce, layout": lambda g: g.allreduce([x, sparse], dist.AllreduceOptions()),
        "allreduce, sizes": lambda g: g.allreduce([x, xy], dist.AllreduceOptions()),
        "allreduce, sparse": lambda g: g.allreduce(
            [sparse], _with(dist.AllreduceOptions(), reduceOp=dist.ReduceOp.MAX)
        ),
        "coalesced, types": lambda g: g.allreduce_coalesced(
            [x, one], dist.AllreduceCoalescedOptions()
        ),
        "reduce, root": lambda g: g.reduce([x], rooted(dist.ReduceOptions(), 2)),
        "reduce, two": lambda g: g.reduce([x, x], rooted(dist.ReduceOptions())),
        "allgather, lists": lambda g: g.allgather([], [x], gathered),
        "allgather, list": lambda g: g.allgather([[x]], [x], gathered),
        "allgather, sizes": lambda g: g.allgather([[x, xy]], [x], gathered),
        "allgather, types": lambda g: g.allgather([[x, one]], [x], gathered),
        "base, size": lambda g: g._allgather_base(torch.ones(5), xy, gathered),
        "base, type": lambda g: g._allgather_base(xy, one, gathered),
        "gathered lists, lists": lambda g: g.allgather_coalesced([[x]], [x], gathered),
        "gathered lists, list": lambda g: g.allgather_coalesced([[x], [x, x]], [x], gathered),
        "gathered lists, sizes": lambda g: g.allgather_coalesced([[x], [xy]], [x], gathered),
        "gathered lists, types": lambda g: g.allgather_coalesced([[x], [one]], [x], gathered),
        "gathered tensors, size": lambda g: g.allgather_into_tensor_coalesced(
            [torch.ones(5)], [xy], gathered
        ),
        "gathered tensors, two": lambda g: g.allgather_into_tensor_coalesced(
            [xy, xy], [x], gathered
        ),
        "gather, root": lambda g: g.gather([[x, x]], [x], rooted(gather(), 5)),
        "gather, input": lambda g: g.gather([[x, x]], [x, x], rooted(gather())),
        "gather, lists": lambda g: g.gather([], [x], rooted(gather())),
        "gather, list": lambda g: g.gather([[x]], [x], rooted(gather())),
        "gather, sizes": lambda g: g.gather([[x, xy]], [x], rooted(gather())),
        "gather, other root": lambda g: g.gather([[x, x]], [x], rooted(gather(), 1)),
        "scatter, root": lambda g: g.scatter([x], [[x, x]], rooted(dist.ScatterOptions(), 5)),
        "scatter, output": lambda g: g.scatter([x, x], [[x, x]], rooted(dist.ScatterOptions())),
        "scatter, lists": lambda g: g.scatter([x], [], rooted(dist.ScatterOptions())),
        "scatter, list": lambda g: g.scatter([x], [[x]], rooted(dist.ScatterOptions())),
        "scatter, sizes": lambda g: g.scatter([x], [[x, xy]], rooted(dist.ScatterOptions())),
        "scatter, other root": lambda g: g.scatter([x], [[x, x]], rooted(dist.ScatterOptions(), 1)),
        "reduce_scatter, lists": lambda g: g.reduce_scatter([x], [], scattered),
        "reduce_scatter, list": lambda g: g.reduce_scatter([x], [[x]], scattered),
        "reduce_scatter, outputs": lambda g: g.reduce_scatter([x, x], [[x, x]] * 2, scattered),
        "reduce_scatter, sizes": lambda g: g.reduce_scatter([x], [[xy, xy]], scattered),
        "reduce_scatter, types": lambda g: g.reduce_scatter([x], [[one, x]], scattered),
        "reduce_scatter, size": lambda g: g._reduce_scatter_base(xy, torch.ones(5), scattered),
        "reduce_scatter, type": lambda g: g._reduce_scatter_base(x, xy.int(), scattered),
        "reduce_scatter, two": lambda g: g.reduce_scatter_tensor_coalesced([x, x], [xy], scattered),
        "alltoall, counts": lambda g: g.alltoall_base(xy, xy, [1, 1], [2], exchanged),
        "alltoall, splits": lambda g: g.alltoall_base(xy, xy, [1, 1], [2, 2], exchanged),
        "alltoall, one side": lambda g: g.alltoall_base(torch.ones(3), xy, [], [1, 1], exchanged),
        "alltoall, inputs": lambda g: g.alltoall([x, x], [x], exchanged),
        "alltoall, outputs": lambda g: g.alltoall([x], [x, x], exchanged),
        "alltoall, types": lambda g: g.alltoall([x, x], [x, one], exchanged),
    }


def _try(call: Callable[[Any], Any], group: Any, waits: bool) -> None:
    work = call(group)
    assert waits, "it was taken"
    work.wait()


def _refusals(group: Any, waits: bool) -> dict[str, tuple[type[BaseException], str]]:
    """Return type and text of each refusal, without the prefix that names the backend."""
    found = {}
    for name, call in _bad_calls().items():
        with pytest.raises(Exception, match=r"\S") as refusal:
            _try(call, group, waits)
        text = str(refusal.value).splitlines()[0]
        found[name] = refusal.type, re.sub(r"^(dlslime: |ProcessGroupGloo::)", "", text)
    return found


def _differ(ours: str, gloos: str) -> bool:
    """Tell whether refusals differ; some of Gloo's texts name a source line or no collective."""
    return "Check failed" not in gloos and not ours.endswith(gloos)


def _refused(rank: int, size: int) -> None:
    """Check that bad calls are refused before rank 1 comes, as by Gloo; the group survives."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 0:
        ours = _refusals(dist.group.WORLD, waits=False)
        assert backend._get_sequence_number_for_group() == 0
        tell("all are refused")
    else:
        await_key("all are refused", SOON)
    gloo = dist.new_group(backend="gloo")
    if rank == 0:
        gloos = _refusals(gloo, waits=True)
        assert {kind for kind, _ in ours.values()} == {RuntimeError}
        assert {kind for kind, _ in gloos.values()} == {RuntimeError}
        assert not [n for n in ours if _differ(ours[n][1], gloos[n][1])], (ours, gloos)
    add_up()
    assert backend._get_sequence_number_for_group() == 1


def test_bad_arguments_are_refused_at_the_call_before_the_ranks_have_met_too() -> None:
    run_world(_refused, 2, fresh=True, group_timeout=NEVER, timeout=NEVER)


def _scalars(rank: int, size: int) -> None:
    """Check shapes that make Gloo read beyond a tensor's end."""
    group: Any = dist.group.WORLD
    for output, part in ((torch.tensor(1.0), torch.ones(2)), (torch.ones(2, 3), torch.ones(4))):
        with pytest.raises(RuntimeError, match="reduce_scatter_tensor: output of float"):
            group._reduce_scatter_base(output, part, _c10d.ReduceScatterOptions())
    total = torch.zeros(2)
    dist.reduce_scatter_tensor(total, torch.arange(4.0))
    assert total.tolist() == ([0, 2] if rank == 0 else [4, 6])


def test_shapes_that_gloo_reads_beyond_are_refused() -> None:
    run_world(_scalars, 2)
