"""The examples p2p_*.py, as programs on one host: bytes moved, and bad command lines."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from harness import dlslime_only
from nodes import free_port
from paths import EXAMPLES, PROGRAMS
from programs.torchrun import torchrun

pytestmark = dlslime_only

ON_FAKE_GPUS = PROGRAMS / "cuda" / "on_fake_gpus.py"
SECONDS = 120

ONE_PROCESS = [
    "p2p_rdma_rc_read",
    "p2p_rdma_rc_read_coroutine",
    "p2p_rdma_rc_write",
    "p2p_rdma_rc_write_with_imm_data",
    "p2p_rdma_rc_send_recv",
    "p2p_rdma_rc_send_recv_gdr",
]
TORCH = "p2p_rdma_rc_send_recv_torch"


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    """Start an example, on fake GPUs if an argument names a GPU."""
    runner = [str(ON_FAKE_GPUS)] if any("cuda" in one for one in arguments) else []
    command = [sys.executable, *runner, str(EXAMPLES / f"{name}.py"), *arguments]
    # The runner is not in the folder of the module shared by the examples.
    env = os.environ | {"PYTHONPATH": str(EXAMPLES), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)


def results(*started: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Wait for all processes; return the exit status and the output of each."""
    try:
        ended = [(process.communicate(timeout=SECONDS), process) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *written) for written, process in ended]


def urls() -> list[str]:
    """Return two unused addresses of the host."""
    ports = {free_port() for _ in range(20)}
    return [
        f"--initiator-url=tcp://127.0.0.1:{ports.pop()}",
        f"--target-url=localhost:{ports.pop()}",
    ]


def lines_of_both(output: str, route: str, devices: tuple[str, str]) -> None:
    """Check that each end has printed its line, and nothing else."""
    for role, device in zip(("initiator", "target"), devices):
        line = rf"^{role}: .+ \(route: {route}, {device}\)$"
        assert len(re.findall(line, output, re.MULTILINE)) == 1, output
    assert output.count("\n") == 2, output


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_both_ends_in_one_process(name: str, device: str) -> None:
    [(status, output, errors)] = results(start(name, "--device", device))
    assert status == 0, errors
    lines_of_both(output, "self", (device, device))


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize(
    ("name", "devices"),
    [(name, ("cpu", "cpu")) for name in [*ONE_PROCESS, "p2p_nvlink"]]
    + [("p2p_nvlink", ("cuda:0", "cuda:1")), ("p2p_rdma_rc_send_recv_gdr", ("cuda:1", "cuda:0"))],
)
def test_two_processes(name: str, devices: tuple[str, str]) -> None:
    where = urls()
    roles = zip(("initiator", "target"), devices)
    started = [start(name, "--role", role, "--device", device, *where) for role, device in roles]
    ended = results(*started)
    assert [status for status, *_ in ended] == [0, 0], ended
    lines_of_both("".join(output for _, output, _ in ended), "shm", devices)


def lines_of_ranks(output: str, devices: tuple[str, str]) -> None:
    for rank, device in enumerate(devices):
        assert f"rank {rank}: 5 tensors each way (route: shm, {device})\n" in output, output


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize(
    ("device", "devices"), [("cpu", ("cpu", "cpu")), ("cuda", ("cuda:0", "cuda:1"))]
)
def test_two_ranks_of_torch(device: str, devices: tuple[str, str]) -> None:
    where = ["--device", device, "--url", f"127.0.0.1:{free_port()}"]
    ended = results(*(start(TORCH, "--rank", str(rank), *where) for rank in range(2)))
    assert [status for status, *_ in ended] == [0, 0], ended
    lines_of_ranks("".join(output for _, output, _ in ended), devices)


def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    status, output = torchrun(EXAMPLES / f"{TORCH}.py", [], 2, tmp_path)
    assert status == 0, output
    lines_of_ranks(output, ("cpu", "cpu"))


Run = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in the test's process, with torch imported; expect one line of error."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("RANK", raising=False)

    def run(name: str, *arguments: str) -> str:
        program = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(program, run_name="__main__")
        written = capsys.readouterr()
        usage, _, error = written.err.rpartition(f"{name}.py: error: ")
        assert ended.value.code == 2
        assert written.out == ""
        assert usage.startswith("usage: ") or not usage
        assert error.endswith("\n")
        assert error.count("\n") == 1
        return error.strip()

    return run


READ = "p2p_rdma_rc_read"
NO_URL = r"is not HOST:PORT or tcp://HOST:PORT$"
BAD_LINES: dict[str, tuple[str, Sequence[str], str]] = {
    "no such role": (READ, ["--role", "server"], "--role: invalid choice: 'server'"),
    "empty role": (READ, ["--role", ""], "--role: invalid choice: ''"),
    "no role": ("p2p_nvlink", [], "are required: --role"),
    "nvlink in one process": ("p2p_nvlink", ["--role", "both"], "--role: invalid choice: 'both'"),
    "no port": (READ, ["--target-url", "localhost"], f"--target-url: 'localhost' {NO_URL}"),
    "no host": (READ, ["--initiator-url", ":29600"], f"--initiator-url: ':29600' {NO_URL}"),
    "port 0": (READ, ["--target-url", "localhost:0"], NO_URL),
    "port beyond": (READ, ["--target-url", "localhost:65536"], NO_URL),
    "port of letters": (READ, ["--target-url", "localhost:http"], NO_URL),
    "other scheme": (READ, ["--target-url", "http://localhost:29600"], NO_URL),
    "a path": (READ, ["--target-url", "tcp://localhost:29600/"], NO_URL),
    "a user": (READ, ["--target-url", "tcp://me@localhost:29600"], NO_URL),
    "open bracket": (READ, ["--target-url", "[::1:29600"], NO_URL),
    "IPv6 without brackets": (READ, ["--target-url", "::1:29600"], NO_URL),
    "label of no resolver": (READ, ["--target-url", f"{'a' * 64}:29600"], NO_URL),
    "one URL for both": (
        READ,
        ["--target-url", "a:1", "--initiator-url", "tcp://a:1"],
        "--initiator-url and --target-url are the same",
    ),
    "unknown device": (READ, ["--device", "tpu"], "--device: 'tpu' is not cpu, cuda or cuda:N"),
    "device of torch": (READ, ["--device", "meta"], "'meta' is not cpu, cuda or cuda:N"),
    "GPU that is none": (
        READ,
        ["--device", "cuda:9999"],
        "there is no cuda:9999 here",
    ),
    "time of no sense": (READ, ["--timeout", "nan"], "'nan' is not a number of seconds"),
    "no time": (READ, ["--timeout", "0"], "'0' is not a number of seconds"),
    "abbreviation": (READ, ["--dev", "cpu"], "unrecognized arguments: --dev cpu"),
    "no rank": (TORCH, [], "--rank is needed without torchrun"),
    "rank beyond": (TORCH, ["--rank", "2"], "--rank: invalid choice: 2"),
    "URL of a rank": (TORCH, ["--rank", "0", "--url", "here"], f"--url: 'here' {NO_URL}"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_command_line_gets_one_line_of_error(case: str, refused: Run) -> None:
    name, arguments, message = BAD_LINES[case]
    assert re.search(message, refused(name, *arguments))


@pytest.mark.parametrize("name", [*ONE_PROCESS, "p2p_nvlink"])
@pytest.mark.parametrize(("role", "other"), [("initiator", "target"), ("target", "initiator")])
def test_other_end_that_does_not_come_is_named(
    name: str, role: str, other: str, refused: Run
) -> None:
    error = refused(name, "--role", role, *urls(), "--timeout", "0.3")
    assert re.fullmatch(rf"no {other} at \w[\w.]+:\d+ within 0.3 s: Connection refused", error)


def test_host_without_address_is_named(refused: Run) -> None:
    where = ["--target-url", "nowhere.invalid:1", "--initiator-url", "127.0.0.1:29610"]
    error = refused(READ, "--role", "target", *where, "--timeout", "0.3")
    assert error.startswith("the target can't listen at nowhere.invalid:1: ")


def test_address_that_is_in_use_is_named(refused: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"can't listen at 127.0.0.1:{port}: Address already in use"
        where = [f"--initiator-url=127.0.0.1:{port}", "--timeout", "0.3"]
        assert refused(READ, "--role", "initiator", *where) == f"the initiator {expected}"
        where = [f"--url=127.0.0.1:{port}", "--timeout", "0.3"]
        assert refused(TORCH, "--rank", "0", *where) == f"rank 0 {expected}"


def test_rank_0_that_does_not_come_is_named(refused: Run) -> None:
    url = f"127.0.0.1:{free_port()}"
    error = refused(TORCH, "--rank", "1", "--url", url, "--timeout", "0.3")
    assert error == f"no rank 0 at {url} within 0.3 s: Connection refused"


def test_rank_1_that_does_not_come_is_an_error() -> None:
    url = f"127.0.0.1:{free_port()}"
    [(status, _, errors)] = results(start(TORCH, "--rank", "0", "--url", url, "--timeout", "1"))
    assert status == 2
    assert re.search(rf"^{TORCH}.py: error: Timed out .+ 1/2 clients joined", errors, re.MULTILINE)


def test_torchrun_with_three_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch, refused: Run
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert refused(TORCH) == "this takes 2 ranks, and not 3"


def test_other_program_is_refused_at_both_ends() -> None:
    where = urls()
    ended = results(
        start(READ, "--role", "initiator", *where),
        start("p2p_rdma_rc_write", "--role", "target", *where),
    )
    for status, output, errors in ended:
        assert (status, output) == (2, "")
        assert re.fullmatch(r"\S+.py: error: the other process is '\S+' as '\w+', and .+\n", errors)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module shared by the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("pair")


NO_LINE = "what calls as the target is none: it sends other lines"
LINES = {
    "no JSON": b"GET / HTTP/1.1\r\n",
    "no dict": b"[1, 2]\n",
    "no text": b'{"program": 1}\n',
    "not UTF-8": b'{"program": "\xff"}\n',
    "deep": b"[" * 60_000 + b"\n",
    "endless": b"x" * 70_000,
}


@pytest.mark.parametrize("case", LINES)
def test_line_of_a_stranger_is_refused(case: str, pair: ModuleType) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(LINES[case])
        with pytest.raises(pair.PairError, match=NO_LINE):
            pair.Line("target", ours, ours).exchange({})


def test_end_that_says_nothing_is_not_waited_for(pair: ModuleType) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.1)
        with pytest.raises(pair.PairError, match="the target is connected, but says nothing"):
            pair.Line("target", ours, ours).exchange({})


def talk(where: list[str], answers: list[str]) -> tuple[int, str, str]:
    """Run an initiator with the test as a false target, which sends `answers` line by line."""
    mine, theirs = (int(url.rpartition(":")[2]) for url in reversed(where))
    with socket.create_server(("localhost", mine)) as listener:
        process = start(READ, "--role", "initiator", "--timeout", "20", *where)
        with listener.accept()[0] as incoming:
            incoming.settimeout(SECONDS)
            with socket.create_connection(("127.0.0.1", theirs)) as outgoing:
                reader = incoming.makefile("r")
                for answer in answers:
                    reader.readline()
                    outgoing.sendall(answer.encode())
    return results(process)[0]


HELLO = {"program": f"{READ}.py", "role": "target"}
NO_USE = "what the other process tells is of no use"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "the target has ended"),
        ([json.dumps(HELLO) + "\n"], f"{NO_USE}: dlslime: the address"),
        ([json.dumps(HELLO | {"address": "xy"}) + "\n"], f"{NO_USE}: non-hexadecimal"),
    ],
    ids=["nothing", "no address", "no hexadecimal"],
)
def test_other_end_that_is_none_gets_one_line_of_error(answers: list[str], message: str) -> None:
    status, output, errors = talk(urls(), answers)
    assert (status, output) == (2, "")
    assert re.fullmatch(rf"{READ}.py: error: {message}.*\n", errors), errors


WRONG = """
import sys
from pair import expect, run
import torch

def play(side):
    if side.role == wrong:
        expect(torch.zeros(3, dtype=torch.int64), [0, 1, 0])
    elif waiting == "receiving":
        side.endpoint.recv(torch.zeros(3)).wait()

wrong, waiting = sys.argv[1:]
del sys.argv[1:]
run("", play)
"""


@pytest.mark.parametrize("waiting", ["receiving", "meeting"])
@pytest.mark.parametrize("role", ["initiator", "target"])
def test_wrong_bytes_at_one_end_end_both_with_the_reason(role: str, waiting: str) -> None:
    env = os.environ | {"PYTHONPATH": str(EXAMPLES)}
    ended = subprocess.run(
        [sys.executable, "-c", WRONG, role, waiting],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=env,
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith("AssertionError: [0, 0, 0] instead of [0, 1, 0]\n")
