"""Observability: profiler events, log lines, pending operations in a time-out's text."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness import BACKEND, all_routes, dlslime_only, run_world, sync
from patterns import blank, pattern
from test_groups import exchange

CPU = torch.device("cpu")


def _profile(rank: int, size: int) -> None:
    exchange(None)
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        if rank == 0:
            dist.send(torch.ones(3, 4), 1)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(7), 1)]):
                work.wait()
            dist.send(torch.ones(2), 1)
        else:
            dist.recv(torch.zeros(3, 4), 0)
            dist.irecv(torch.zeros(7), 0).wait()
            dist.recv(torch.zeros(2))
        sync("done")
    events = [(e.name, e.input_shapes) for e in profiler.function_events]
    names = [(n.split(":")[1], s[0]) for n, s in events if n.startswith(f"{BACKEND}:") and s]
    if rank == 0:
        assert names == [("send", [3, 4]), ("send", [7]), ("send", [2])], events
    else:
        assert names == [("recv", [3, 4]), ("recv", [7]), ("recvAnySource", [2])], events


@all_routes
def test_profiler_shows_every_operation_with_its_shape(env: dict[str, str]) -> None:
    run_world(_profile, 2, env=env)


def _profile_collectives(rank: int, size: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        exchange(None)
    names = {event.name for event in profiler.events()}
    assert any("all_reduce" in name for name in names), names
    assert f"{BACKEND}:send" in names


def test_torch_profiler_shows_collectives_and_messages() -> None:
    run_world(_profile_collectives, 2)


def _communication(profiler: torch.profiler.profile, path: Path) -> list[dict[str, Any]]:
    """Return what the trace says of each event of communication, in order."""
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    found = [event for event in events if event["name"] == "record_param_comms"]
    return [event["args"] for event in sorted(found, key=lambda event: event["ts"])]


def _trace(rank: int, size: int, path: Path) -> None:
    group = dist.new_group([1, 0], group_desc="another")
    exchange(None)  # before the profiler: no event
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        if rank == 0:
            dist.send(torch.ones(3, 4), 1)
            dist.send(torch.ones(5, dtype=torch.int16), 1, group=group)
        else:
            dist.recv(torch.ones(3, 4), 0)
            dist.recv(torch.ones(5, dtype=torch.int16), 0, group=group)
    exchange(None)
    what = ["send", "recv"][rank]
    first, second = _communication(profiler, path / str(rank))
    for told, count, dtype in ((first, 12, "Float"), (second, 5, "Short")):
        assert told["Collective name"] == what
        assert (told["In msg nelems"], told["Out msg nelems"]) == (count, count)
        assert told["dtype"] == dtype
        assert told["Group size"] == 2
    peer = ["Dst Rank", "Src Rank"][rank]
    assert first[peer] == 1 - rank
    assert (first["Process Group Name"], second["Process Group Description"]) == ("0", "another")
    assert first["Process Group Name"] != second["Process Group Name"]


@dlslime_only
def test_trace_of_torch_profiler_describes_each_message(tmp_path: Path) -> None:
    run_world(_trace, 2, tmp_path)


def _timeout_dump(rank: int, size: int) -> str:
    text = ""
    if rank == 0:
        others = [dist.irecv(blank(77), 1, tag=31), dist.isend(pattern(1_000_000), 2, tag=32)]
        others.append(dist.irecv(blank(55), tag=33))
        with pytest.raises(dist.DistBackendError) as caught:
            dist.recv(blank(123), 2, tag=30)
        text = str(caught.value)
        del others
    sync("told")
    return text


@dlslime_only
@all_routes
def test_timeout_tells_the_operation_and_those_pending(env: dict[str, str]) -> None:
    results = run_world(_timeout_dump, 3, env=env, group_timeout=0.5, with_output=True, fresh=True)
    text = results[0][0]
    assert re.search(r"recv from rank 2", text), text
    assert "tag 30" in text
    assert "123 bytes" in text
    story = text + results[0][1]
    for word in ("tag 31", "77 bytes", "tag 32", "1000000 bytes", "tag 33", "55 bytes"):
        assert word in story, f"{word!r} is missing in:\n{story}"


def _quiet(rank: int, size: int) -> None:
    exchange(None, 1)
    exchange(None, 2, 500_000)
    dist.barrier()


@dlslime_only
@all_routes
def test_nothing_is_logged_when_nothing_is_wrong(env: dict[str, str]) -> None:
    for _, output in run_world(_quiet, 2, env=env, fresh=True, with_output=True):
        assert output == ""


@dlslime_only
@pytest.mark.parametrize("level", ["info", "debug"])
def test_log_has_one_line_per_event(level: str) -> None:
    env = {"DLSLIME_LOG": level}
    results = run_world(_quiet, 2, env=env, fresh=True, with_output=True)
    for _, output in results:
        lines = output.splitlines()
        assert lines
        assert all("dlslime" in line.lower() for line in lines), output
        assert len([line for line in lines if "connected" in line and "shm" in line]) == 1, output


@dlslime_only
def test_log_level_error_is_quieter_than_debug() -> None:
    lengths = [
        len(run_world(_quiet, 2, env={"DLSLIME_LOG": level}, fresh=True, with_output=True)[0][1])
        for level in ("error", "debug")
    ]
    assert lengths[0] == 0
    assert lengths[1] > 0


@dlslime_only
def test_torch_log_level_is_heard_too() -> None:
    env = {"TORCH_CPP_LOG_LEVEL": "INFO"}
    output = run_world(_quiet, 2, env=env, fresh=True, with_output=True)[0][1]
    assert "dlslime" in output.lower()


def _errors(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    errors = torch._C._distributed_c10d.ErrorType
    exchange(None)
    sync("connected")
    assert backend.get_error() == errors.SUCCESS
    with pytest.raises(dist.DistBackendError):
        dist.irecv(blank(4), 1 - rank, tag=1).wait(datetime.timedelta(milliseconds=50))
    assert backend.get_error() == errors.SUCCESS, "one operation's time-out is not the group's end"
    sync("timed out")
    if rank == 1:
        dist.destroy_process_group()
        return
    with pytest.raises(dist.DistBackendError):
        dist.recv(blank(4), 1)
    assert backend.get_error() == errors.REMOTE_ERROR
    backend.abort()
    assert backend.get_error() == errors.COMM_ERROR


@dlslime_only
def test_get_error_tells_success_remote_error_and_abort() -> None:
    run_world(_errors, 2, fresh=True)


def _exception_classes(rank: int, size: int) -> None:
    work = dist.irecv(blank(4), 1 - rank, tag=1)
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait(datetime.timedelta(milliseconds=50))
    assert isinstance(caught.value, dist.DistError)
    assert isinstance(caught.value, RuntimeError)
    assert "\n" not in str(caught.value).splitlines()[0]


@dlslime_only
def test_failures_are_torchs_distributed_errors() -> None:
    run_world(_exception_classes, 2)
