"""batch_isend_irecv: thousands of tensors, tags, failures inside, and torch's uses of batches."""

import threading

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect_pattern, pattern
from test_work import poll


def _exchange(rank: int, size: int, count: int, nbytes: int) -> None:
    other = 1 - rank
    received = [blank(nbytes) for _ in range(count)]
    ops = [dist.P2POp(dist.isend, pattern(nbytes, i + rank), other) for i in range(count)]
    ops += [dist.P2POp(dist.irecv, tensor, other) for tensor in received]
    works = dist.batch_isend_irecv(ops)
    assert works
    for work in works:
        work.wait()
    for i, tensor in enumerate(received):
        expect_pattern(tensor, i + other, f"tensor {i}")


@all_routes
@pytest.mark.parametrize(("count", "nbytes"), [(1, 8), (2048, 16), (2048, 16384), (16, 3_000_000)])
def test_batch_exchanges_both_ways(env: dict[str, str], count: int, nbytes: int) -> None:
    run_world(_exchange, 2, count, nbytes, env=env)


def _work_per_op(rank: int, size: int) -> None:
    received = [blank(8) for _ in range(3)]
    ops = [dist.P2POp(dist.irecv, t, 1 - rank) for t in received]
    ops += [dist.P2POp(dist.isend, pattern(8, i), 1 - rank) for i in range(3)]
    works = dist.batch_isend_irecv(ops)
    assert len(works) == len(ops)
    for work in works:
        work.wait()


@all_routes
def test_batch_returns_one_work_per_op(env: dict[str, str]) -> None:
    run_world(_work_per_op, 2, env=env)


def _tags_inside(rank: int, size: int) -> None:
    other, count = 1 - rank, 40
    received = [blank(100 * i) for i in range(count)]
    sends = [dist.P2POp(dist.isend, pattern(100 * i, i), other, tag=i) for i in range(count)]
    receives = [dist.P2POp(dist.irecv, t, other, tag=i) for i, t in enumerate(received)]
    works = dist.batch_isend_irecv([op for pair in zip(reversed(receives), sends) for op in pair])
    for work in works:
        work.wait()
    for i, tensor in enumerate(received):
        expect_pattern(tensor, i, f"tag {i}")


@all_routes
def test_batch_with_tags_in_different_orders_at_both_ends(env: dict[str, str]) -> None:
    run_world(_tags_inside, 2, env=env)


def _neighbours(rank: int, size: int, rounds: int) -> None:
    """The exchange of ring attention: with two ranks, both neighbours are one rank."""
    following, previous = (rank + 1) % size, (rank - 1) % size
    key, value = torch.full((3000,), float(rank)), torch.full((70_000,), float(rank))
    for i in range(1, rounds):
        new_key, new_value = torch.empty_like(key), torch.empty_like(value)
        ops = [
            dist.P2POp(dist.isend, key, following),
            dist.P2POp(dist.irecv, new_key, previous),
            dist.P2POp(dist.isend, value, following),
            dist.P2POp(dist.irecv, new_value, previous),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        key, value = new_key, new_value
        assert bool((key == (rank - i) % size).all())
        assert bool((value == (rank - i) % size).all())


@all_routes
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ring_of_batches(env: dict[str, str], size: int) -> None:
    run_world(_neighbours, size, 2 * size + 1, env=env)


def _pipeline_batches(rank: int, size: int) -> None:
    """[send_prev, recv_prev, send_next, recv_next], the batch of a pipeline stage."""
    data = pattern(50_000, rank)
    ops, buffers = [], {}
    for other in (rank - 1, rank + 1):
        if 0 <= other < size:
            buffers[other] = blank(50_000)
            ops.append(dist.P2POp(dist.isend, data, other))
            ops.append(dist.P2POp(dist.irecv, buffers[other], other))
    works = dist.batch_isend_irecv(ops)
    works.pop().wait()
    for work in works:
        work.wait()
    for other, tensor in buffers.items():
        expect_pattern(tensor, other)


@all_routes
def test_batches_of_a_pipeline_stage(env: dict[str, str]) -> None:
    run_world(_pipeline_batches, 4, env=env)


def _polled_batch(rank: int, size: int) -> None:
    other = 1 - rank
    received = [blank(200_000) for _ in range(50)]
    ops = [dist.P2POp(dist.isend, pattern(200_000, i + rank), other) for i in range(50)]
    ops += [dist.P2POp(dist.irecv, t, other) for t in received]
    poll(dist.batch_isend_irecv(ops))
    for i, tensor in enumerate(received):
        expect_pattern(tensor, i + other)


@dlslime_only
@all_routes
def test_batch_completes_while_only_polled(env: dict[str, str]) -> None:
    run_world(_polled_batch, 2, env=env)


def _batches_of_threads(rank: int, size: int, threads: int, rounds: int) -> None:
    """Several threads batch on one group at once, each with its own tag."""
    failures: list[BaseException] = []

    def exchange(tag: int) -> None:
        try:
            for i in range(rounds):
                received = [blank(500) for _ in range(4)]
                seed = 7 * tag + i
                ops = [
                    dist.P2POp(dist.isend, pattern(500, seed + rank), 1 - rank, tag=tag)
                    for _ in range(4)
                ]
                ops += [dist.P2POp(dist.irecv, t, 1 - rank, tag=tag) for t in received]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
                for tensor in received:
                    expect_pattern(tensor, seed + 1 - rank, f"thread {tag} round {i}")
        except BaseException as error:  # noqa: BLE001  reported by the rank
            failures.append(error)

    running = [threading.Thread(target=exchange, args=(tag,)) for tag in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failures, failures[0]


@all_routes
def test_batches_from_several_threads_at_once(env: dict[str, str]) -> None:
    run_world(_batches_of_threads, 2, 4, 60, env=env)


def _bad_op_inside(rank: int, size: int) -> None:
    """The ops before the bad op are posted, the ops after are not, and the group goes on."""
    received = blank(100)
    if rank == 0:
        ops = [
            dist.P2POp(dist.isend, pattern(100, 1), 1),
            dist.P2POp(dist.isend, pattern(100, 2).reshape(10, 10).t(), 1),
            dist.P2POp(dist.isend, pattern(100, 3), 1),
        ]
        with pytest.raises((ValueError, RuntimeError), match="contiguous"):
            dist.batch_isend_irecv(ops)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, pattern(100, 4), 1)]):
            work.wait()
    else:
        for seed in (1, 4):
            dist.recv(received, 0)
            expect_pattern(received, seed)
    sync("received")
    for i in range(3):
        _exchange(rank, size, 10 + i, 100)


@dlslime_only
@all_routes
def test_batch_with_a_refused_op_leaves_the_group_whole(env: dict[str, str]) -> None:
    run_world(_bad_op_inside, 2, env=env)


def _objects(rank: int, size: int) -> None:
    sent = [{"a": 1}, "text", None, list(range(5000)), torch.arange(4)]
    for use_batch in (False, True):
        if rank == 0:
            dist.send_object_list(sent, dst=1, use_batch=use_batch)
        else:
            received = [None] * len(sent)
            assert dist.recv_object_list(received, src=0, use_batch=use_batch) == 0
            assert received[:4] == sent[:4]
            assert torch.equal(received[4], sent[4])


@all_routes
def test_object_lists_with_and_without_batch(env: dict[str, str]) -> None:
    run_world(_objects, 2, env=env)


def _batch_of_many_peers(rank: int, size: int) -> None:
    others = [r for r in range(size) if r != rank]
    received = {(r, i): blank(1000) for r in others for i in range(60)}
    ops = [dist.P2POp(dist.irecv, t, r) for (r, _), t in received.items()]
    ops += [
        dist.P2POp(dist.isend, pattern(1000, 10 * rank + r + i), r)
        for r in others
        for i in range(60)
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for (r, i), tensor in received.items():
        expect_pattern(tensor, 10 * r + rank + i)


@all_routes
def test_batch_of_hundreds_of_ops_to_all_ranks(env: dict[str, str]) -> None:
    run_world(_batch_of_many_peers, 4, env=env)


def _one_sided_batches(rank: int, size: int) -> None:
    """All sends from one rank, all receives at the other, posted long before the sends."""
    tensors = [pattern(16384, i) if rank == 0 else blank(16384) for i in range(2048)]
    if rank == 0:
        await_key("posted")
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1) for t in tensors])
    else:
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, t, 0) for t in tensors])
        tell("posted")
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        expect_pattern(tensor, i)


@all_routes
def test_batch_of_2048_receives_posted_before_the_sends(env: dict[str, str]) -> None:
    run_world(_one_sided_batches, 2, env=env)


def _group_peers(rank: int, size: int) -> None:
    """Peers given as ranks of a subgroup, different from the ranks of the default group."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return
    other = 2 - rank  # in the group
    received = blank(1000)
    ops = [
        dist.P2POp(dist.isend, pattern(1000, rank), group=group, group_peer=other),
        dist.P2POp(dist.irecv, received, group=group, group_peer=other),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    expect_pattern(received, 3 - rank)


@all_routes
def test_batch_with_peers_as_ranks_of_a_subgroup(env: dict[str, str]) -> None:
    run_world(_group_peers, 3, env=env)


def _functional(rank: int, size: int) -> None:
    """The operators that torch.compile substitutes for isend, irecv and batches."""
    ops, name, other = torch.ops._c10d_functional, dist.group.WORLD.group_name, 1 - rank
    received = torch.zeros(100)
    if rank == 0:
        ops.wait_tensor(ops.isend(torch.full((100,), 7.0), other, 3, name))
    else:
        received = ops.wait_tensor(ops.irecv(received, other, 3, name))
        assert bool((received == 7).all())
    tensors = [torch.full((50,), float(rank)), torch.zeros(50)]
    for tensor in ops.batch_p2p_ops(["isend", "irecv"], [other] * 2, [0, 0], tensors, name):
        ops.wait_tensor(tensor)
    assert bool((tensors[1] == other).all())


@all_routes
def test_functional_operators_of_messages(env: dict[str, str]) -> None:
    run_world(_functional, 2, env=env)
