"""The flight record: files of the last operations, written when a program hangs."""

from __future__ import annotations

import pickle
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from harness import PATIENCE, dlslime_only, init_group, run_world, send_signal, sync
from patterns import blank, pattern

pytestmark = dlslime_only

CPU = torch.device("cpu")
LARGE = 5 << 20  # sent by rendezvous: under way until the peer receives


def _env(folder: Path, **more: str) -> dict[str, str]:
    return {"DLSLIME_FLIGHT_DIR": str(folder), **more}


def _load(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301  made by this test


def _entries(folder: Path, what: str, rank: int) -> list[dict[str, Any]]:
    return _load(folder / f"{what}_rank_{rank}")["entries"]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _expect_files(folder: Path, *ranks: int) -> None:
    wanted = {f"{what}_rank_{rank}" for rank in ranks for what in ("unfinished", "all")}
    assert {path.name for path in folder.iterdir()} == wanted


# --- when files are written -----------------------------------------------------------------------


def _time_out(rank: int, size: int) -> None:
    if rank == 0:
        for _ in range(2):
            with pytest.raises(dist.DistBackendError, match="timed out"):
                dist.recv(blank(7), 1, tag=3)
    sync("timed out")


def test_first_time_out_writes_both_files_and_logs_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    results = run_world(
        _time_out, 2, env=_env(folder), fresh=True, group_timeout=0.5, with_output=True
    )
    log = results[0][1]
    assert log.count("an operation has timed out: the last 1 operations are in") == 1, log
    assert log.count(str(folder / "all_rank_0")) == 1
    assert log.count(str(folder / "unfinished_rank_0")) == 1
    assert "torchfrtrace" in log
    assert results[1][1] == ""
    _expect_files(folder, 0)
    assert _mode(folder) == 0o700
    assert [_mode(path) for path in folder.iterdir()] == [0o600, 0o600]
    (entry,) = _entries(folder, "unfinished", 0)
    assert entry["state"] == "started"
    assert entry["input_sizes"] == [[7]]


def _abort(rank: int, size: int, pending: str) -> None:
    """Abort a group without operations under way, and then one whose rank 0 has some."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    sync("made")
    if rank == 0:
        works = []
        if "first" in pending:
            works.append(dist.irecv(blank(9), 1, group=groups[0]))
        groups[0]._get_backend(CPU).abort()
        if "second" in pending:
            works.append(dist.irecv(blank(9), 1, group=groups[1]))
        groups[1]._get_backend(CPU).abort()
        for work in works:
            with pytest.raises(RuntimeError, match="aborted"):
                work.wait()
    sync("aborted")


@pytest.mark.parametrize("pending", ["first", "second", "first and second"])
def test_first_abort_with_operations_under_way_writes(tmp_path: Path, pending: str) -> None:
    results = run_world(_abort, 2, pending, env=_env(tmp_path), fresh=True, with_output=True)
    assert results[0][1].count("a process group was aborted: the last") == 1
    _expect_files(tmp_path, 0)
    (entry,) = _entries(tmp_path, "unfinished", 0)
    assert entry["input_sizes"] == [[9]]


def test_abort_without_operations_under_way_writes_nothing(tmp_path: Path) -> None:
    results = run_world(_abort, 2, "none", env=_env(tmp_path), fresh=True, with_output=True)
    assert results[0][1] == ""
    assert list(tmp_path.iterdir()) == []


def _await_entries(folder: Path, rank: int, count: int) -> list[dict[str, Any]]:
    """Wait for a file with so many entries."""
    deadline = time.monotonic() + 30 * PATIENCE
    while True:
        try:
            entries = _entries(folder, "all", rank)
        except (FileNotFoundError, EOFError, pickle.UnpicklingError):
            entries = []  # not written yet, or not to its end
        if len(entries) == count:
            return entries
        assert time.monotonic() < deadline, entries
        time.sleep(0.01)


def _signalled(rank: int, size: int, number: int, folder: Path) -> None:
    """Hang twice in rank 0, have the record written each time, and go on."""
    sync("both handle the signal")
    for turn in (1, 2):
        if rank == 0:
            got = blank(50)
            dist.recv(got, 1)
            assert torch.equal(got, pattern(50, turn))
        else:
            _hung_in_receive(number, folder, turn)
            dist.send(pattern(50, turn), 0)
    sync("nothing is under way")
    if rank == 1:
        for one in (0, 1):
            (folder / f"all_rank_{one}").unlink(missing_ok=True)
            send_signal(one, number)
            entries = _await_entries(folder, one, 2)
            assert {entry["state"] for entry in entries} == {"completed"}
    sync("written")


def _hung_in_receive(number: int, folder: Path, turn: int) -> None:
    """Signal rank 0 until the record tells of the receive in which the rank hangs."""
    deadline = time.monotonic() + 30 * PATIENCE
    while True:
        (folder / "all_rank_0").unlink(missing_ok=True)
        send_signal(0, number)
        deadline_of_file = time.monotonic() + 30 * PATIENCE
        while not (folder / "all_rank_0").exists():
            assert time.monotonic() < deadline_of_file
            time.sleep(0.01)
        try:
            entries = _entries(folder, "all", 0)
        except (EOFError, pickle.UnpicklingError):
            continue
        if [entry["state"] for entry in entries] == ["completed"] * (turn - 1) + ["started"]:
            return
        assert time.monotonic() < deadline, entries


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_signal_writes_each_time_and_the_program_goes_on(tmp_path: Path, name: str) -> None:
    number = int(getattr(signal, f"SIG{name}"))
    env = _env(tmp_path, DLSLIME_FLIGHT_SIGNAL=name)
    results = run_world(_signalled, 2, number, tmp_path, env=env, fresh=True, with_output=True)
    assert "signal number 1: the last" in results[0][1]
    assert "signal number 2: the last" in results[0][1]


def _bad_signal(rank: int, size: int) -> str:
    with pytest.raises((RuntimeError, ValueError)) as failure:
        init_group()
    return str(failure.value)


def test_unknown_signal_is_refused_naming_the_known_ones() -> None:
    env = {"DLSLIME_FLIGHT_SIGNAL": "KILL"}
    (text,) = run_world(_bad_signal, 1, env=env, init=False, fresh=True)
    assert "DLSLIME_FLIGHT_SIGNAL=KILL" in text
    assert "USR1" in text
    assert "USR2" in text


# --- what torch's analyser says -------------------------------------------------------------------


def _write(folder: str) -> None:
    paths = dlslime_backend.write_flight_record(folder)
    rank = dist.get_rank()
    assert paths == (f"{folder}/unfinished_rank_{rank}", f"{folder}/all_rank_{rank}")


def _traffic(rank: int, size: int) -> None:
    """Exchange messages of several tags and sizes among all, all of which arrive."""
    for tag in range(3):
        for nbytes in (0, 100, LARGE):
            works = [dist.irecv(blank(nbytes), r, tag=tag) for r in range(size) if r != rank]
            works += [dist.isend(pattern(nbytes), r, tag=tag) for r in range(size) if r != rank]
            for work in works:
                work.wait()


def _hang(rank: int, size: int, case: str, folder: str) -> None:
    _traffic(rank, size)
    works: list[Any] = []
    if case == "wrong tag":
        if rank == 0:
            works.append(dist.isend(pattern(LARGE), 1, tag=5))
        else:
            works.append(dist.irecv(blank(LARGE), 0, tag=6))
    elif case == "one does not come" and rank != 2:
        works.append(dist.irecv(blank(64), 2))
    sync("posted")
    _write(folder)
    sync("written")
    if works:
        dist.group.WORLD._get_backend(CPU).abort()


def _analyse(folder: Path, *options: str) -> str:
    """Return what torch's analyser prints about the files of operations under way."""
    module = "torch.distributed.flight_recorder.fr_trace"
    command = [sys.executable, "-m", module, str(folder), "--prefix", "unfinished_rank_"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=120, check=False
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return text


def test_analyser_names_both_ends_of_a_wrong_tag(tmp_path: Path) -> None:
    run_world(_hang, 2, "wrong tag", str(tmp_path), fresh=True, env=_env(tmp_path / "aborts"))
    table = _analyse(tmp_path, "-j")
    assert f"send(s=0 d=1, input_sizes=[[{LARGE}]], state=started)" in table, table
    assert f"recv(s=0 d=1, input_sizes=[[{LARGE}]], state=started)" in table, table
    story = _analyse(tmp_path)
    send, receive = (
        story[place : story.index("world size", place)]
        for place in (story.index(f"group info: 0/0->1/tag {tag}:dlslime") for tag in (5, 6))
    )
    assert "nccl:send" in send
    assert "missing ranks: {1}" in send
    assert "nccl:recv" in receive
    assert "missing ranks: {0}" in receive


def test_analyser_names_the_rank_of_three_that_does_not_come(tmp_path: Path) -> None:
    run_world(
        _hang, 3, "one does not come", str(tmp_path), fresh=True, env=_env(tmp_path / "aborts")
    )
    story = _analyse(tmp_path)
    for rank in (0, 1):
        assert f"group info: 0/2->{rank}:dlslime" in story, story
    assert story.count("missing ranks: {2}") == 2, story
    assert story.count("missing ranks") == 2, story


def test_sound_traffic_gives_the_analyser_nothing(tmp_path: Path) -> None:
    run_world(_hang, 3, "nothing", str(tmp_path), fresh=True)
    for rank in range(3):
        assert _entries(tmp_path, "unfinished", rank) == []
    assert "missing" not in _analyse(tmp_path)


# --- the file of all operations -------------------------------------------------------------------


def _many(rank: int, size: int, folder: str) -> None:
    sent = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    for turn in range(2100):
        if turn % 2 == rank:
            dist.send(sent, 1 - rank)
            dist.send(sent.to(torch.int16)[0], 1 - rank)
        else:
            dist.recv(torch.empty_like(sent), 1 - rank)
            dist.recv(torch.empty(6, dtype=torch.int16))
    _write(folder)


def test_file_of_all_has_the_last_operations_with_types_and_sizes(tmp_path: Path) -> None:
    run_world(_many, 2, str(tmp_path), fresh=True)
    for rank in range(2):
        entries = _entries(tmp_path, "all", rank)
        assert len(entries) == 4096
        kinds = {
            (e["profiling_name"], str(e["input_sizes"]), str(e["input_dtypes"])) for e in entries
        }
        assert kinds == {
            (name, size, dtype)
            for name in ("nccl:send 0->1", "nccl:recv 1<-0")
            for size, dtype in (("[[24]]", "['Double']"), ("[[6]]", "['Short']"))
        }
        assert [e["record_id"] for e in entries] == list(range(4096))
        assert all(e["time_created_ns"] <= e["time_discovered_completed_ns"] for e in entries)
        times = [e["time_created_ns"] for e in entries]
        assert times == sorted(times)


def _various(rank: int, size: int, folder: str) -> None:
    group = dist.new_group([1, 0], group_desc="another")
    if rank == 1:
        dist.send(torch.ones(3), 0, group=group, tag=8)
        dist.send(torch.ones(2), 0)
    else:
        dist.recv(torch.ones(3), 1, group=group, tag=8)
        dist.recv(torch.ones(2))
        work = dist.irecv(torch.ones(2))  # from any rank
    local = dlslime_backend.register(torch.zeros(100, dtype=torch.uint8))
    handles: list[Any] = [None, None]
    dist.all_gather_object(handles, local.export())
    remote = dlslime_backend.import_region(handles[1 - rank])
    peer = dlslime_backend.peer(1 - rank)
    peer.read(local, remote).wait()
    peer.write(local, remote).wait()
    sync("done")
    _write(folder)
    sync("written")
    if rank == 1:
        dist.send(torch.ones(2), 0)
    else:
        work.wait()


def test_groups_tags_sources_and_transfers_are_named(tmp_path: Path) -> None:
    run_world(_various, 2, str(tmp_path), fresh=True)
    record = _load(tmp_path / "all_rank_0")
    told = [(e["process_group"][0], e["profiling_name"], e["state"]) for e in record["entries"]]
    names = [name for name, _, _ in told]
    assert names[0].endswith("/1->0/tag 8"), names
    assert names[0] != "0/1->0/tag 8", "of another group"
    assert told[1] == ("0/1->0", "nccl:recv 1<-0", "completed")
    assert told[2] == ("0/?->0", "nccl:recv 1<-?", "started")
    assert {title for _, title, _ in told[3:]} >= {"dlslime:read", "dlslime:write"}
    assert record["pg_config"]["0/1->0"]["ranks"] == "[1, 0]"
    assert _entries(tmp_path, "unfinished", 0) == [], "no analyser can compare it"
