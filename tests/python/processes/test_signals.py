"""Signals during a wait of the main thread: handlers run, and Ctrl-C ends the wait."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

import dlslime_backend
from harness import all_routes, await_key, dlslime_only, run_world, tell
from patterns import blank, expect_pattern, pattern

pytestmark = dlslime_only  # Gloo lets signals wait

NBYTES = 1000


@contextlib.contextmanager
def handling(handler: Callable[..., Any]) -> Iterator[None]:
    """Send the process a signal with a `handler`, once the wait has begun."""
    old = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, old)


def _interrupted(rank: int, size: int) -> None:
    received = blank(NBYTES)
    if rank == 0:
        await_key("interrupted")
        dist.send(pattern(NBYTES, 1), 1)
        dist.send(pattern(NBYTES, 2), 1)
        return
    work = dist.irecv(received, 0)
    with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
        work.wait()
    assert not work.is_completed(), "it goes on"
    tell("interrupted")
    work.wait()
    expect_pattern(received, 1)
    dist.recv(received, 0)
    expect_pattern(received, 2)


@all_routes
def test_ctrl_c_ends_the_wait_and_nothing_else(env: dict[str, str]) -> None:
    run_world(_interrupted, 2, env=env)


def _handled(rank: int, size: int) -> None:
    received = blank(NBYTES)
    if rank == 0:
        await_key("handled")  # would wait for ever if the handler ran after the wait
        dist.send(pattern(NBYTES, 3), 1)
        return
    with handling(lambda *_: tell("handled")):
        dist.recv(received, 0)
    expect_pattern(received, 3)


@all_routes
def test_a_handler_runs_during_the_wait(env: dict[str, str]) -> None:
    run_world(_handled, 2, env=env)


def _other_thread(rank: int, size: int) -> None:
    """A thread's wait leaves signals to the main thread."""
    if rank == 0:
        await_key("interrupted")
        dist.send(pattern(NBYTES, 4), 1)
        return
    received = blank(NBYTES)
    thread = threading.Thread(target=lambda: dist.recv(received, 0))
    thread.start()
    with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
        time.sleep(20)  # an interrupted join() takes the thread for ended (Python 3.11)
    assert thread.is_alive()
    tell("interrupted")
    thread.join()
    expect_pattern(received, 4)


def test_threads_are_not_interrupted() -> None:
    run_world(_other_thread, 2)


def _transfer(rank: int, size: int) -> None:
    peer = dlslime_backend.peer(1 - rank)
    region = dlslime_backend.register(blank(NBYTES), "memory")
    handles: list[Any] = [None, None]
    dist.all_gather_object(handles, region.export())
    if rank == 0:
        await_key("interrupted")
        remote = dlslime_backend.import_region(handles[1])
        peer.write_with_imm(region, remote, imm=77).wait()
        return
    number = peer.expect_imm()
    with pytest.raises(KeyboardInterrupt), handling(signal.default_int_handler):
        number.wait()
    assert not number.done(), "it goes on"
    tell("interrupted")
    assert number.wait() == 77


@all_routes
def test_ctrl_c_ends_the_wait_for_a_transfer(env: dict[str, str]) -> None:
    run_world(_transfer, 2, env=env)
