"""The Work of a send or a receive: waiting, polling, time-outs, futures, results."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect, expect_pattern, pattern
from polling import eventually

pytestmark = dlslime_only  # Gloo has next to none of the features for point-to-point operations

SMALL, LARGE = 64, 2_000_000
SHORT = datetime.timedelta(milliseconds=150)


def poll(works: list[dist.Work], seconds: float = 20) -> None:
    """Return once every work says that it is completed, without a wait."""
    eventually(lambda: all(work.is_completed() for work in works), seconds)


def _polled(rank: int, size: int, nbytes: int) -> None:
    other = 1 - rank
    received = blank(nbytes)
    works = [dist.irecv(received, other), dist.isend(pattern(nbytes, rank), other)]
    poll(works)
    expect_pattern(received, other)
    assert all(work.is_success() for work in works)


@all_routes
@pytest.mark.parametrize("nbytes", [0, SMALL, LARGE])
def test_is_completed_becomes_true_without_wait(env: dict[str, str], nbytes: int) -> None:
    run_world(_polled, 2, nbytes, env=env)


def _one_side_polls(rank: int, size: int, poller: int) -> None:
    """One rank only polls, the other only computes: operations must progress at both."""
    if rank == 0:
        works = [dist.isend(pattern(LARGE, i), 1, tag=i) for i in range(8)]
    else:
        received = [blank(LARGE) for _ in range(8)]
        works = [dist.irecv(t, 0, tag=i) for i, t in enumerate(received)]
    if rank == poller:
        poll(works)
        tell("polled")
    else:
        await_key("polled")  # in no call of the backend
        poll(works)
    if rank == 1:
        for i, tensor in enumerate(received):
            expect_pattern(tensor, i)


@all_routes
@pytest.mark.parametrize("poller", [0, 1])
def test_operations_progress_while_the_other_side_is_away(env: dict[str, str], poller: int) -> None:
    run_world(_one_side_polls, 2, poller, env=env)


def _completed_is_truthful(rank: int, size: int) -> None:
    received = blank(SMALL)
    if rank == 0:
        work = dist.irecv(received, 1)
        time.sleep(0.05)
        assert not work.is_completed()
        expect(received, blank(SMALL), "nothing was sent yet")
        tell("send")
        poll([work])
        expect_pattern(received, 1)
    else:
        await_key("send")
        dist.send(pattern(SMALL, 1), 0)


@all_routes
def test_is_completed_is_false_before_the_send(env: dict[str, str]) -> None:
    run_world(_completed_is_truthful, 2, env=env)


def _wait_twice(rank: int, size: int, nbytes: int) -> None:
    received = blank(nbytes)
    work = dist.isend(pattern(nbytes, 1), 1) if rank == 0 else dist.irecv(received, 0)
    for _ in range(3):
        assert work.wait()
        assert work.is_completed()
    work.synchronize()
    if rank == 1:
        expect_pattern(received, 1)


@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_wait_may_be_called_again(env: dict[str, str], nbytes: int) -> None:
    run_world(_wait_twice, 2, nbytes, env=env)


def _wait_from_threads(rank: int, size: int) -> None:
    received = blank(LARGE)
    work = dist.isend(pattern(LARGE, 1), 1) if rank == 0 else dist.irecv(received, 0)
    seen = []

    def wait() -> None:
        work.wait()
        if rank == 1:
            expect_pattern(received, 1)
        seen.append(work.is_completed())

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4


@all_routes
def test_one_work_may_be_waited_for_by_four_threads(env: dict[str, str]) -> None:
    run_world(_wait_from_threads, 2, env=env)


def _receive_times_out(rank: int, size: int, nbytes: int) -> None:
    if rank == 0:
        abandoned, received = blank(nbytes), blank(nbytes)
        work = dist.irecv(abandoned, 1, tag=6)
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            work.wait(SHORT)
        tell("timed out")
        assert dist.recv(received, 1, tag=6) == 1
        expect_pattern(received, 3)
        expect(abandoned, blank(nbytes), "the abandoned receive's tensor")
        assert dist.recv(received, 1, tag=6) == 1
        expect_pattern(received, 4)
        dist.send(received, 1)
    else:
        await_key("timed out")
        dist.send(pattern(nbytes, 3), 0, tag=6)
        dist.send(pattern(nbytes, 4), 0, tag=6)
        received = blank(nbytes)
        dist.recv(received, 0)
        expect_pattern(received, 4)


@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_receive_that_timed_out_leaves_its_message_to_the_next(
    env: dict[str, str], nbytes: int
) -> None:
    run_world(_receive_times_out, 2, nbytes, env=env)


def _any_source_times_out(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.irecv(blank(SMALL), tag=6)
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            work.wait(SHORT)
        tell("timed out")
        received = blank(SMALL)
        assert dist.recv(received, tag=6) == 1
        expect_pattern(received, 3)
    else:
        await_key("timed out")
        dist.send(pattern(SMALL, 3), 0, tag=6)


@all_routes
def test_any_source_receive_that_timed_out_takes_no_message(env: dict[str, str]) -> None:
    run_world(_any_source_times_out, 2, env=env)


def _send_times_out(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.isend(pattern(LARGE, 3), 1, tag=6)
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            work.wait(SHORT)
        dist.send(pattern(SMALL, 8), 1, tag=7)
        dist.send(pattern(LARGE, 9), 1, tag=8)
        tell("others sent")
        received = blank(LARGE)
        dist.recv(received, 1, tag=9)
        expect_pattern(received, 10)
    else:
        small, large = blank(SMALL), blank(LARGE)
        dist.recv(small, 0, tag=7)
        expect_pattern(small, 8)
        dist.recv(large, 0, tag=8)
        expect_pattern(large, 9)
        await_key("others sent")
        dist.send(pattern(LARGE, 10), 0, tag=9)


@all_routes
def test_send_that_timed_out_leaves_the_pair_usable(env: dict[str, str]) -> None:
    run_world(_send_times_out, 2, env=env)


def _group_timeout(rank: int, size: int) -> None:
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="(?i)time") as caught:
            dist.recv(blank(SMALL), 1, tag=5)
        assert 0.3 < time.monotonic() - start < 25  # not the 30 s of a default
        text = str(caught.value)
        assert "rank 1" in text
        assert "tag 5" in text
        assert str(SMALL) in text
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=30))
    sync("timed out")
    tensor = torch.ones(1) * rank
    if rank == 0:
        dist.recv(tensor, 1, tag=5)
        assert tensor.item() == 1
    else:
        dist.send(tensor, 0, tag=5)


@all_routes
def test_groups_timeout_holds_for_blocking_calls(env: dict[str, str]) -> None:
    run_world(_group_timeout, 2, env=env, group_timeout=0.4)


def _set_timeout(rank: int, size: int) -> None:
    if rank == 0:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=0.3))
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            dist.recv(blank(SMALL), 1)
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=30))
        tell("send")
        received = blank(SMALL)
        dist.recv(received, 1)
        expect_pattern(received, 2)
    else:
        await_key("send")
        time.sleep(0.5)
        dist.send(pattern(SMALL, 2), 0)


@all_routes
def test_set_timeout_changes_the_groups_timeout(env: dict[str, str]) -> None:
    run_world(_set_timeout, 2, env=env)


def _future(rank: int, size: int, nbytes: int) -> None:
    received = blank(nbytes)
    work = dist.isend(pattern(nbytes, 1), 1) if rank == 0 else dist.irecv(received, 0)
    called = threading.Event()
    future = work.get_future().then(lambda f: (f.value(), called.set())[0])
    value = future.wait()
    assert called.is_set()
    assert work.is_completed()
    if rank == 1:
        expect_pattern(received, 1)
        assert value[0].data_ptr() == received.data_ptr()


@all_routes
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_get_future_is_fulfilled_with_the_tensor(env: dict[str, str], nbytes: int) -> None:
    run_world(_future, 2, nbytes, env=env)


def _future_without_wait(rank: int, size: int) -> None:
    received = blank(SMALL)
    if rank == 0:
        futures = [dist.irecv(received, 1).get_future()]
        tell("posted")
    else:
        await_key("posted")
        futures = [dist.isend(pattern(SMALL, 1), 0).get_future()]
    eventually(lambda: all(future.done() for future in futures))


@all_routes
def test_future_is_done_without_a_waiting_thread(env: dict[str, str]) -> None:
    run_world(_future_without_wait, 2, env=env)


def _callback_blocks(rank: int, size: int) -> None:
    """A callback waits for a later event, while other threads work on."""
    if rank == 1:
        await_key("posted")
        dist.send(pattern(SMALL, 1), 0, tag=1)
        await_key("in the callback")
        time.sleep(0.2)  # rank 0 is asleep by now
        for i in range(20):
            dist.send(pattern(LARGE, i), 0)
        return
    entered, leave, over = threading.Event(), threading.Event(), threading.Event()

    def block(future: torch.futures.Future[list[torch.Tensor]]) -> None:
        entered.set()
        assert leave.wait(30)
        expect_pattern(future.value()[0], 1)
        over.set()

    dist.irecv(blank(SMALL), 1, tag=1).get_future().add_done_callback(block)
    tell("posted")
    assert entered.wait(20)
    tell("in the callback")
    received = blank(LARGE)
    work = dist.irecv(received, 1)
    future = work.get_future()
    for i in range(20):
        work.wait(datetime.timedelta(seconds=20))
        expect_pattern(received, i)
        work = dist.irecv(received, 1) if i < 19 else work
    assert not over.is_set()
    leave.set()
    assert over.wait(20)
    future.wait()


@all_routes
def test_a_callback_may_block(env: dict[str, str]) -> None:
    run_world(_callback_blocks, 2, env=env)


def _wait_fulfils(rank: int, size: int) -> None:
    for i in range(200):
        data = pattern(SMALL, i)
        work = dist.isend(data, 1) if rank == 0 else dist.irecv(data, 0)
        future = work.get_future()
        work.wait()
        assert future.done(), f"round {i}"


@all_routes
def test_the_future_is_done_when_wait_returns(env: dict[str, str]) -> None:
    run_world(_wait_fulfils, 2, env=env)


def _future_of_a_failure(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.irecv(blank(SMALL), 1)
        future = work.get_future()
        with pytest.raises(dist.DistBackendError):
            work.wait(SHORT)
        with pytest.raises(RuntimeError, match="(?i)time"):
            future.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert work.exception() is not None
        with pytest.raises(dist.DistBackendError, match="(?i)time"):
            work.wait()  # raises the failure again


@all_routes
def test_failure_shows_in_future_exception_and_second_wait(env: dict[str, str]) -> None:
    run_world(_future_of_a_failure, 2, env=env)


def _result(rank: int, size: int) -> None:
    data = pattern(SMALL, 1) if rank == 0 else blank(SMALL)
    work = dist.isend(data, 1) if rank == 0 else dist.irecv(data, 0)
    work.wait()
    result = work.result()
    if rank == 1:
        assert len(result) == 1
        assert result[0].data_ptr() == data.data_ptr()
        expect_pattern(result[0], 1)
    assert work.is_success()


@all_routes
def test_result_holds_the_received_tensor(env: dict[str, str]) -> None:
    run_world(_result, 2, env=env)
