"""Broken set-ups of one host: what the ranks of a job say first, and what the doctor says."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness import dlslime_only, init_group, run_world, sync
from nodes import free_port
from patterns import blank, expect_pattern, pattern
from polling import eventually
from setups import SOON, doctor, expect_problem, job
from test_permissions import refuse

pytestmark = dlslime_only


# --- a profile that forbids process_vm_readv ------------------------------------------------------


def _forbid() -> None:
    refuse("readv", "writev")


def test_doctor_names_the_profile_and_the_pair_works() -> None:
    found = doctor(begin=_forbid)
    expect_problem(found["process_vm_readv"], "seccomp", "--security-opt")
    assert "large messages go by staged" in found["pair on this host"]["text"]


def test_job_under_the_profile_works_and_warns_once_with_cause_and_remedy() -> None:
    with job({"begin": _forbid}, {"begin": _forbid}) as ranks:
        texts = [rank.says() for rank in ranks]
    for text in texts:
        assert "worked" in text, text
        (warning,) = [line for line in text.splitlines() if "process_vm_readv" in line]
        assert "take two copies, through shared memory, instead of one" in warning, text
        assert "errno 1 (Operation not permitted)" in warning, text
        assert "a seccomp filter is active" in warning, text
        assert "use a seccomp profile that allows process_vm_readv" in warning, text
        assert "DLSLIME_CMA=off silences the warning" in warning, text


# --- environments without dlslime, or with a build for another torch ------------------------------


@pytest.fixture
def other_build(tmp_path: Path) -> str:
    """Return a folder with the package as built for the torch minor before the installed."""
    import dlslime_backend

    source, copy = Path(dlslime_backend.__file__).parent, tmp_path / "dlslime_backend"
    left_out = shutil.ignore_patterns("__pycache__", "lib")
    shutil.copytree(source, copy, ignore=left_out)
    (copy / "lib").mkdir()
    for part in (source / "lib").iterdir():
        if not part.name.startswith("torch_"):
            (copy / "lib" / part.name).symlink_to(part)
    built = source / "lib" / "torch_{}_{}".format(*torch.__version__.split(".")[:2])
    (copy / "lib" / "torch_2_1").symlink_to(built)
    return str(tmp_path)


def test_both_ranks_name_the_build_for_another_torch(other_build: str) -> None:
    with job({}, {"env": {"PYTHONPATH": other_build}}) as ranks:
        waiting, text = (rank.says() for rank in ranks)
    assert [rank.process.returncode for rank in ranks] == [1, 1], "exceptions and no crash"
    cause = f"built for torch 2.1, but torch {torch.__version__} is installed"
    last = text.splitlines()[-1]
    assert cause in last, text
    assert "pip install" in last, text
    (error,) = [line for line in waiting.splitlines() if "DistBackendError: " in line]
    assert "can't be reached: it could not begin: ImportError: " in error, waiting
    assert cause in error, waiting


def test_doctor_names_the_build_for_another_torch(other_build: str) -> None:
    found = doctor(PYTHONPATH=other_build)
    expect_problem(found["extension"], "built for torch 2.1, but torch 2.", "for this torch")
    assert "pair on this host" not in found, "nothing more can be tried"


@pytest.fixture
def without_plugin(tmp_path: Path) -> dict[str, Any]:
    """Return the arguments of a rank with everything but dlslime installed."""
    for entry in Path(torch.__file__).parents[1].iterdir():
        if "dlslime" not in entry.name and entry.suffix != ".pth":
            (tmp_path / entry.name).symlink_to(entry)
    # Without the module `site` only this folder, and the standard library, is on the path.
    return {"options": ["-S"], "env": {"PYTHONPATH": str(tmp_path)}}


def test_rank_without_the_plugin_is_waited_for_with_a_warning(
    without_plugin: dict[str, Any],
) -> None:
    """torch makes the text of the rank itself, since nothing of dlslime runs there."""
    assert importlib.metadata.distribution("dlslime-backend").files, "else nothing is left out"
    with job({}, without_plugin) as ranks:
        text = ranks[1].says()
        warning = ranks[0].comes_to_say("has not been reached")
        assert ranks[0].process.poll() is None, "the rank may still come"
    assert ranks[1].process.returncode == 1
    assert "Unknown backend type dlslime" in text.splitlines()[-1], text
    assert "rank 1 of " in warning
    assert "its address is not in the store yet: it has not called init_process_group" in warning
    assert "or has failed there (see its output)" in warning


# --- a variable with a wrong value ----------------------------------------------------------------


@pytest.mark.parametrize("first", ["message", "collective"])
def test_both_ranks_name_the_wrong_value_of_a_variable(first: str) -> None:
    wrong = {"DLSLIME_SPIN_US": "much"}
    with job({"env": {"FIRST": first}}, {"env": {"FIRST": first, **wrong}}) as ranks:
        waiting, text = (rank.says() for rank in ranks)
    assert [rank.process.returncode for rank in ranks] == [1, 1]
    assert "DLSLIME_SPIN_US" in text.splitlines()[-1], text
    (error,) = [line for line in waiting.splitlines() if "it could not begin: " in line]
    assert "DLSLIME_SPIN_US" in error, waiting


# --- a store that died ----------------------------------------------------------------------------

HOST_OF_A_STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("first", ["message", "collective"])
def test_rank_whose_store_died_fails_with_the_place_of_the_store(first: str) -> None:
    port = free_port()
    host = subprocess.Popen(
        [sys.executable, "-c", HOST_OF_A_STORE, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    client = {"TORCHELASTIC_USE_AGENT_STORE": "True", "FIRST": first}
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == b"there\n"
        with job({"env": client}, port=port) as (rank,):
            rank.comes_to_say("begun")
            host.kill()
            text = rank.says()
    finally:
        host.kill()
        host.communicate()
    assert rank.process.returncode == 1, text
    last = text.splitlines()[-1]
    assert "DistBackendError: " in last, text
    assert f"the group's store at 127.0.0.1:{port} (see whether the process that hosts it" in last


# --- two versions ---------------------------------------------------------------------------------


def await_listener(port: int) -> socket.socket:
    """Return a connection to a port of this host, once a process listens there."""
    found: list[socket.socket] = []

    def connects() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            found.append(socket.create_connection(("127.0.0.1", port)))
        return bool(found)

    eventually(connects, SOON, f"nothing listens at {port}")
    return found[0]


MAGIC = b"DLSLIME1"  # the beginning of every record, before the version


class ChangedVersion:
    """A way to the store on which all address records get the next protocol version.

    The rank that takes this way sees its peer as of a newer dlslime, and is seen so.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            far = await_listener(self._to)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        # A record is far smaller than a packet of the loopback, and comes in one piece.
        with one, other:
            try:
                while data := one.recv(1 << 20):
                    other.sendall(_with_next_version(data))
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait in accept()
        self._listener.close()


def _with_next_version(data: bytes) -> bytes:
    head, *records = data.split(MAGIC)
    changed = [struct.pack("<H", _version(record) + 1) + record[2:] for record in records]
    return MAGIC.join([head, *changed])


def _version(record: bytes) -> int:
    return int(struct.unpack_from("<H", record)[0])


@pytest.fixture
def changed() -> Iterator[tuple[int, ChangedVersion]]:
    """Yield a port for a store, and the way to it that changes versions."""
    port = free_port()
    way = ChangedVersion(port)
    yield port, way
    way.close()


@pytest.mark.parametrize("first", ["message", "collective"])
def test_ranks_of_two_versions_name_both_at_both_ends(
    changed: tuple[int, ChangedVersion], first: str
) -> None:
    port, way = changed
    env = {"FIRST": first}
    with job({"env": env}, {"env": env, "port": way.port}, port=port) as ranks:
        texts = [rank.says() for rank in ranks]
    for text in texts:
        assert "has protocol version" in text, text
        assert "this process has" in text, text
        assert "install the same dlslime on every rank" in text, text


def test_doctors_of_two_versions_name_both(changed: tuple[int, ChangedVersion]) -> None:
    port, way = changed
    listen = [sys.executable, "-m", "dlslime_backend", "doctor", "--json", "--listen", str(port)]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listener:
        try:
            await_listener(port).close()
            (ours,) = doctor("--peer", f"127.0.0.1:{way.port}").values()
            (theirs,) = json.loads(listener.communicate(timeout=2 * SOON)[0])
        finally:
            listener.kill()
    for finding in (ours, theirs):
        expect_problem(finding, "install the same dlslime on every rank", "")


# --- 64 descriptors -------------------------------------------------------------------------------


def _allow_64() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def test_doctor_names_a_limit_of_64_descriptors_and_the_pair_works() -> None:
    found = doctor(begin=_allow_64)
    expect_problem(found["descriptors"], "may have 64 descriptors", "ulimit -n")
    assert found["pair on this host"]["level"] != "problem", found


def _all_pairs(rank: int, size: int) -> None:
    _allow_64()
    init_group()
    received = {peer: blank(1000) for peer in range(size) if peer != rank}
    works = [dist.irecv(tensor, peer) for peer, tensor in received.items()]
    works += [dist.isend(pattern(1000, rank), peer) for peer in received]
    for work in works:
        work.wait()
    for peer, tensor in received.items():
        expect_pattern(tensor, peer)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
    sync("through")


@pytest.mark.parametrize("route", ["auto", "tcp"])
def test_64_descriptors_are_enough_for_eight_ranks(route: str) -> None:
    run_world(_all_pairs, 8, env={"DLSLIME_ROUTE": route}, init=False, fresh=True)


# Lets up to 40 ms pass between connecting and the first byte, as a busy machine does.
DELAYED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int connect(int fd, const struct sockaddr *name, socklen_t size) {
  int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
  const int result = real(fd, name, size);
  if (name->sa_family == AF_UNIX) usleep(random() % 40000);
  return result;
}
"""
ALL_PAIRS = """
import torch, torch.distributed as dist
dist.init_process_group("dlslime")
rank, others = dist.get_rank(), set(range(dist.get_world_size())) - {dist.get_rank()}
received = {peer: torch.zeros(1000) for peer in others}
ops = [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in received.items()]
ops += [dist.P2POp(dist.isend, torch.full((1000,), float(rank)), peer) for peer in others]
dist.barrier()  # all connect at once
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert all((tensor == peer).all() for peer, tensor in received.items())
print("worked", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_64_descriptors_are_enough_when_eight_ranks_greet_late(tmp_path: Path) -> None:
    source, library = tmp_path / "delayed.c", tmp_path / "delayed.so"
    source.write_text(DELAYED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    env = {"WORLD_SIZE": "8", "DLSLIME_ROUTE": "tcp", "LD_PRELOAD": str(library)}
    with job(*({"env": env, "program": ALL_PAIRS, "begin": _allow_64} for _ in range(8))) as ranks:
        for rank in ranks:
            assert "worked" in rank.says(), rank.output
