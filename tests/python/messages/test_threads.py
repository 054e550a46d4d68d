"""Many threads of a process on one group: sends, receives, waits for works of other threads."""

import queue
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, tell
from patterns import blank, expect_pattern, pattern
from polling import eventually


def run_threads(functions: list[Callable[[], None]]) -> None:
    """Run every function in a thread of its own; raise the first failure."""
    failures: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _ping_pongs(rank: int, size: int, threads: int, rounds: int) -> None:
    def ping_pong(tag: int) -> None:
        tensor = torch.zeros(3, dtype=torch.int64)
        for i in range(rounds):
            if rank == 0:
                dist.send(tensor, 1, tag=tag)
                dist.recv(tensor, 1, tag=tag)
            else:
                dist.recv(tensor, 0, tag=tag)
                tensor += tag
                dist.send(tensor, 0, tag=tag)
            assert tensor.tolist() == [tag * (i + 1)] * 3

    run_threads([lambda tag=tag: ping_pong(tag) for tag in range(threads)])


@all_routes
def test_threads_ping_pong_on_tags_of_their_own(env: dict[str, str]) -> None:
    run_world(_ping_pongs, 2, 6, 40, env=env)


def _many_senders(rank: int, size: int, threads: int, nbytes: int) -> None:
    other, rounds = 1 - rank, 20

    def send(tag: int) -> None:
        for i in range(rounds):
            dist.send(pattern(nbytes, 31 * tag + i + rank), other, tag=tag)

    def receive(tag: int) -> None:
        for i in range(rounds):
            received = blank(nbytes)
            dist.recv(received, other, tag=tag)
            expect_pattern(received, 31 * tag + i + other, f"tag {tag} message {i}")

    run_threads(
        [lambda t=t: send(t) for t in range(threads)]
        + [lambda t=t: receive(t) for t in range(threads)]
    )


@all_routes
@pytest.mark.parametrize("nbytes", [100, 300_000])
def test_threads_send_and_receive_at_once(env: dict[str, str], nbytes: int) -> None:
    run_world(_many_senders, 2, 5, nbytes, env=env)


def _to_different_peers(rank: int, size: int) -> None:
    def talk(other: int) -> None:
        for i in range(30):
            received = blank(5000)
            work = dist.isend(pattern(5000, rank + i), other)
            dist.recv(received, other)
            work.wait()
            expect_pattern(received, other + i)

    run_threads([lambda other=other: talk(other) for other in range(size) if other != rank])


@all_routes
def test_thread_per_peer(env: dict[str, str]) -> None:
    run_world(_to_different_peers, 4, env=env)


def _parked_receive(rank: int, size: int) -> None:
    """A thread parked in recv holds up neither the GIL nor other operations."""
    if rank == 0:
        parked = blank(10)
        thread = threading.Thread(target=dist.recv, args=(parked, 1), kwargs={"tag": 1})
        thread.start()
        for i in range(50):
            received = blank(200_000)
            dist.recv(received, 1, tag=2)
            expect_pattern(received, i)
        assert thread.is_alive()
        tell("release")
        thread.join()
        expect_pattern(parked, 99)
    else:
        for i in range(50):
            dist.send(pattern(200_000, i), 0, tag=2)
        await_key("release")
        dist.send(pattern(10, 99), 0, tag=1)


@all_routes
def test_parked_receive_does_not_block_other_threads(env: dict[str, str]) -> None:
    run_world(_parked_receive, 2, env=env)


def _gil_is_free(rank: int, size: int) -> None:
    if rank == 0:
        counted = 0
        thread = threading.Thread(target=dist.recv, args=(blank(10), 1))
        thread.start()
        deadline = time.monotonic() + 20
        while counted < 1001 and time.monotonic() < deadline:
            counted += 1
        tell("release")
        thread.join()
        assert counted > 1000
    else:
        await_key("release")
        dist.send(pattern(10), 0)


@all_routes
def test_gil_is_free_while_a_thread_waits(env: dict[str, str]) -> None:
    run_world(_gil_is_free, 2, env=env)


def _waited_elsewhere(rank: int, size: int) -> None:
    """A thread posts, and another thread waits."""
    works: queue.SimpleQueue = queue.SimpleQueue()

    def post() -> None:
        for i in range(100):
            if rank == 0:
                works.put((i, None, dist.isend(pattern(30_000, i), 1)))
            else:
                received = blank(30_000)
                works.put((i, received, dist.irecv(received, 0)))

    def wait() -> None:
        for _ in range(100):
            i, received, work = works.get()
            work.wait()
            if received is not None:
                expect_pattern(received, i)

    run_threads([post, wait])


@all_routes
def test_works_are_waited_for_on_other_threads(env: dict[str, str]) -> None:
    run_world(_waited_elsewhere, 2, env=env)


def _any_source_threads(rank: int, size: int) -> None:
    count = 40
    if rank != 0:
        for i in range(count):
            dist.send(torch.tensor([rank, i]), 0)
        return
    seen: list[tuple[int, int]] = []

    def receive() -> None:
        for _ in range(count // 2):
            received = torch.zeros(2, dtype=torch.int64)
            source = dist.recv(received)
            assert source == int(received[0])
            seen.append((source, int(received[1])))

    run_threads([receive] * (2 * (size - 1)))
    assert sorted(seen) == [(r, i) for r in range(1, size) for i in range(count)]


@dlslime_only
@all_routes
def test_any_source_receives_in_several_threads(env: dict[str, str]) -> None:
    run_world(_any_source_threads, 3, env=env)


def _from_autograd(rank: int, size: int) -> None:
    """A gradient hook, run in the thread of `backward` on CPU, sends and receives."""
    weight = torch.ones(10, requires_grad=True)
    received = torch.zeros(10)

    def exchange(grad: torch.Tensor) -> None:
        work = dist.isend(grad.contiguous() * (rank + 1), 1 - rank)
        dist.recv(received, 1 - rank)
        work.wait()

    weight.register_hook(exchange)
    (weight * 3).sum().backward()
    assert received.tolist() == [3.0 * (2 - rank)] * 10


@all_routes
def test_exchange_inside_a_gradient_hook(env: dict[str, str]) -> None:
    run_world(_from_autograd, 2, env=env)


def _polling_threads(rank: int, size: int) -> None:
    """Several threads call is_completed() on works that other threads wait for."""
    received = [blank(100_000) for _ in range(30)]
    if rank == 0:
        works = [dist.isend(pattern(100_000, i), 1) for i in range(30)]
    else:
        works = [dist.irecv(t, 0) for t in received]

    def poll() -> None:
        eventually(lambda: all(work.is_completed() for work in works))

    def wait() -> None:
        for work in works:
            work.wait()

    run_threads([poll, wait, poll])
    if rank == 1:
        for i, tensor in enumerate(received):
            expect_pattern(tensor, i)


@dlslime_only
@all_routes
def test_pollers_and_waiters_share_works(env: dict[str, str]) -> None:
    run_world(_polling_threads, 2, env=env)
