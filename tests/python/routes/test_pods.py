"""Two processes in namespaces of their own, as in two pods of a node, with a common directory.

No process has a network interface, not even a loopback, and both are number 1 of their pid
namespaces: what comes right can't have gone by a pid or by the network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import dlslime_only
from namespaces import POD, needs_pods
from paths import PROGRAMS

pytestmark = [dlslime_only, needs_pods]

VARIABLE, NVIDIAS = "DLSLIME_RENDEZVOUS_DIR", "NVIDIA_DRA_LOCAL_IPC_DIR"
PROGRAM = PROGRAMS / "pods.py"
LIMIT = 120
# A container's user is not the user of the test, but one that the namespace around knows as 5.
AS_USER_5 = ("unshare", "--user", "--map-user=5", "--map-group=5")


@dataclasses.dataclass
class End:
    """How a process ended, and what it printed."""

    status: int
    result: dict[str, Any]
    errors: str


@contextlib.contextmanager
def _started(
    rank: int, folder: Path, *case: str, env: Mapping[str, str], around: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    clean = {name: text for name, text in os.environ.items() if name not in (VARIABLE, NVIDIAS)}
    process = subprocess.Popen(
        [*around, *POD, sys.executable, str(PROGRAM), str(rank), str(folder), *case],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, **env},
    )
    try:
        yield process
    finally:
        process.kill()  # and with it the process in the namespaces
        process.communicate()


def _end(process: subprocess.Popen[str]) -> End:
    output, errors = process.communicate(timeout=LIMIT)
    lines = output.splitlines()
    return End(process.returncode, json.loads(lines[-1]) if lines else {}, errors)


def run_pods(
    folder: Path,
    *case: str,
    env: Mapping[str, str] | Sequence[Mapping[str, str]],
    around: Sequence[Sequence[str]] = ((), ()),
) -> list[End]:
    """Run the case in two pods with the environments, and return how they ended."""
    envs = [env, env] if isinstance(env, Mapping) else env
    with contextlib.ExitStack() as stack:
        pods = [
            stack.enter_context(_started(rank, folder, *case, env=one, around=outer))
            for rank, (one, outer) in enumerate(zip(envs, around, strict=True))
        ]
        return [_end(pod) for pod in pods]


def _expect_well(ends: list[End]) -> None:
    story = "".join(f"\n--- rank {rank}:\n{end.errors}" for rank, end in enumerate(ends))
    assert [end.status for end in ends] == [0, 0], story


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("end", ["destroy", "leave"])
@pytest.mark.parametrize("variable", [VARIABLE, NVIDIAS])
def test_pods_share_memory_by_a_common_directory(tmp_path: Path, variable: str, end: str) -> None:
    meeting = _folder(tmp_path / "meeting")
    ends = run_pods(tmp_path, "traffic", end, env={variable: str(meeting)})
    _expect_well(ends)
    for pod in ends:
        assert pod.result["pid"] == 1
        told = pod.result["explain"]
        assert (told["route"], told["copy"]) == ("shm", "staged")
        assert "over shm, met in DLSLIME_RENDEZVOUS_DIR; large messages go by" in told["text"]
        assert pod.result["sockets"], "a process has its socket as long as it lives"
        assert pod.errors == "", "nothing is wrong"
    assert list(meeting.iterdir()) == [], "nothing is left"


def test_one_directory_is_found_by_two_paths_and_dlslimes_variable_goes_first(
    tmp_path: Path,
) -> None:
    meeting = _folder(tmp_path / "meeting")
    (tmp_path / "link").symlink_to(meeting)
    long = _folder(tmp_path / ("long" * 30)) / ".." / "meeting"
    paths = [str(tmp_path / "link"), str(long)]
    envs = [{VARIABLE: path, NVIDIAS: str(tmp_path / "missing")} for path in paths]
    ends = run_pods(tmp_path, "traffic", env=envs)
    _expect_well(ends)
    assert [end.result["explain"]["route"] for end in ends] == ["shm", "shm"]


def test_a_forked_child_that_ends_leaves_its_parents_socket(tmp_path: Path) -> None:
    meeting = _folder(tmp_path / "meeting")
    _expect_well(run_pods(tmp_path, "forking", env={VARIABLE: str(meeting)}))


@pytest.mark.usefixtures("_fake_gpus")
def test_mapped_memory_of_gpus_goes_from_gpu_to_gpu(tmp_path: Path) -> None:
    meeting = _folder(tmp_path / "meeting")
    env = {VARIABLE: str(meeting), "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ends = run_pods(tmp_path, "gpus", env=env)
    _expect_well(ends)
    for end in ends:
        assert end.result["explain"]["route"] == "shm"
        assert end.errors == "", "nothing is wrong"


# --- what goes wrong ------------------------------------------------------------------------------


def test_pods_without_a_directory_are_told_what_to_mount(tmp_path: Path) -> None:
    for end in run_pods(tmp_path, "refused", env={}):
        error = end.result["error"]
        assert "network namespace" in error
        assert "mount one directory into both containers" in error
        assert VARIABLE in error


def test_pods_with_two_directories_are_told_what_to_mount(tmp_path: Path) -> None:
    envs = [{VARIABLE: str(_folder(tmp_path / name))} for name in ("one", "other")]
    for end in run_pods(tmp_path, "refused", env=envs):
        error = end.result["error"]
        assert "mount one directory into both containers" in error
        assert VARIABLE in error


def test_only_one_pod_with_a_directory_is_told_what_to_mount(tmp_path: Path) -> None:
    envs = [{VARIABLE: str(_folder(tmp_path / "one"))}, {}]
    for end in run_pods(tmp_path, "refused", env=envs):
        assert "mount one directory into both containers" in end.result["error"]


@pytest.mark.parametrize(("variable", "what"), [(VARIABLE, "missing"), (NVIDIAS, "file")])
def test_directory_that_is_none_fails_at_init_by_its_variable(
    tmp_path: Path, variable: str, what: str
) -> None:
    (tmp_path / "file").write_text("text")
    setting = f"{variable}={tmp_path / what}"
    with _started(0, tmp_path, "waiting", env={variable: str(tmp_path / what)}) as pod:
        end = _end(pod)
    assert end.status != 0
    assert "init_process_group" in end.errors
    assert f"{setting} can't be used" in end.errors
    assert "mount the directory into each container" in end.errors


def test_users_do_not_meet_and_are_told_why(tmp_path: Path) -> None:
    """Both processes are user 0 of their containers; the namespaces around know them as two."""
    meeting = _folder(tmp_path / "meeting")
    ends = run_pods(tmp_path, "refused", env={VARIABLE: str(meeting)}, around=((), AS_USER_5))
    _expect_well(ends)
    theirs = [f"of another user (uid {uid}, this process of uid" for uid in (5, os.geteuid())]
    for end, text in zip(ends, theirs, strict=True):
        assert text in end.result["error"]
    assert list(meeting.iterdir()) == []


# --- what a killed process leaves -----------------------------------------------------------------


def _age(path: Path, seconds: int) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def _killed(folder: Path, meeting: Path) -> Path:
    """Return the socket of a process that was killed, made young for longer than the test takes."""
    before = set(meeting.iterdir())
    with _started(0, folder, "waiting", env={VARIABLE: str(meeting)}) as pod:
        assert pod.stdout is not None
        assert pod.stdout.readline() == "waiting\n"
    (left,) = set(meeting.iterdir()) - before
    assert left.is_socket()
    _age(left, -3600)
    return left


def test_a_killed_processs_socket_is_removed_by_the_next(tmp_path: Path) -> None:
    meeting = _folder(tmp_path / "meeting")
    old, young = _killed(tmp_path, meeting), _killed(tmp_path, meeting)
    (meeting / "foreign").touch()
    for path in (old, meeting / "foreign"):
        _age(path, 3600)
    run = _folder(tmp_path / "run")
    _expect_well(run_pods(run, "traffic", env={VARIABLE: str(meeting)}))
    assert sorted(meeting.iterdir()) == sorted([meeting / "foreign", young])
