"""`python -m dlslime_backend`: its commands, run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlslime_backend.cli.job import JobError, reports
from dlslime_backend.cli.options import OPTIONS
from dlslime_backend.histograms import SIZES
from harness import dlslime_only
from nodes import free_port
from paths import ROOT

pytestmark = dlslime_only

PEER = """
import sys, torch, torch.distributed as dist
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("dlslime", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
data = torch.zeros(300_000)
for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
    call(data, 1 - rank)
pending = dist.irecv(data, 1 - rank, tag=9)
print("ready", flush=True)
sys.stdin.readline()
"""


def command(*arguments: str, cwd: str = "/", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "dlslime_backend", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
        cwd=cwd,
    )


def read_json(*arguments: str, **env: str) -> Any:
    done = command(*arguments, "--json", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def doctor(*arguments: str, **env: str) -> dict[str, dict[str, str]]:
    """Return the doctor's findings by check; fail unless its status tells of problems."""
    done = command("doctor", *arguments, "--json", **env)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    problems = [finding for finding in found.values() if finding["level"] == "problem"]
    assert all(finding["remedy"] for finding in problems)
    assert done.returncode == bool(problems), done.stdout + done.stderr
    return found


@pytest.fixture
def job() -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks that have exchanged 1.2 MB each, with a receive pending."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PEER, str(rank), port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_doctor_tries_a_pair_and_tells_its_route() -> None:
    found = doctor(DLSLIME_ROUTE="shm")
    for route in ("shm", "tcp", "gloo"):
        assert found[f"route {route}"]["text"] == "works"
    pair = found["pair on this host"]
    assert pair["level"] == "ok"
    assert "is reached over shm" in pair["text"]
    assert "1 MiB in" in pair["text"]


def test_doctor_tries_the_package_that_it_belongs_to(tmp_path: Path) -> None:
    (tmp_path / "dlslime_backend").mkdir()
    (tmp_path / "dlslime_backend" / "__init__.py").write_text("raise ImportError('another')")
    assert "is reached over" in doctor(cwd=str(tmp_path))["pair on this host"]["text"]


def test_doctor_notes_a_slow_route_and_why() -> None:
    pair = doctor(DLSLIME_SHM="off", DLSLIME_RDMA="off")["pair on this host"]
    assert pair["level"] == "note"
    assert "shm (" in pair["text"]


def test_doctor_names_a_setting_that_is_not_understood() -> None:
    found = doctor(DLSLIME_ROUTE="fast")["settings"]
    assert found["level"] == "problem"
    assert "DLSLIME_ROUTE=fast" in found["text"]


def test_doctor_in_words_has_no_colours_in_a_pipe() -> None:
    done = command("doctor")
    assert "\x1b" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line.rstrip() != line] == []
    assert re.search(r"^ok +versions +dlslime", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^\d+ problems, \d+ notes$", done.stdout, re.MULTILINE), done.stdout


def test_doctors_of_two_processes_try_the_pair_between_them() -> None:
    port = str(free_port())
    listen = [sys.executable, "-m", "dlslime_backend", "doctor", "--json", "--listen", port]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listener:
        try:
            for _ in range(50):  # until the listener has begun
                found = json.loads(
                    command("doctor", "--json", "--peer", f"127.0.0.1:{port}").stdout
                )
                if "nothing listens" not in found[0]["text"]:
                    break
            assert "rank 0" in found[0]["text"], found
            theirs = json.loads(listener.communicate(timeout=100)[0])
        finally:
            listener.kill()
    assert "rank 1" in theirs[0]["text"], theirs


def test_doctor_says_that_nothing_listens() -> None:
    (found,) = doctor("--peer", f"127.0.0.1:{free_port()}").values()
    assert "nothing listens at port" in found["text"]
    assert "doctor --listen" in found["remedy"]


def test_explain_tells_routes_and_counters_of_a_running_job(
    job: list[subprocess.Popen[str]],
) -> None:
    (report,) = read_json("explain", str(job[0].pid), "--seconds", "0.1")
    (group,) = report["groups"]
    (peer,) = group["peers"]
    assert (report["pid"], group["rank"], group["size"], peer["rank"]) == (job[0].pid, 0, 2, 1)
    assert (peer["pid"], peer["sent_messages"], peer["sent_bytes"]) == (job[1].pid, 1, 1_200_000)
    assert peer["pending_receives"] == 1
    assert peer["route"]
    assert peer["sent_rate"] == 0


def test_explain_in_words_and_top(job: list[subprocess.Popen[str]]) -> None:
    text = command("explain", str(job[1].pid), "--seconds", "0.1").stdout
    for word in ("rank 1 of 2", "rank 0 (pid", "above 64 KiB", "1 messages, 1.144 MiB", "pending"):
        assert word in text, text
    table = command("top", "--rounds", "1", "--every", "0.1").stdout
    for rank in job:
        assert str(rank.pid) in table, table


def test_metrics_are_prometheus_text(job: list[subprocess.Popen[str]]) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(command("metrics").stdout)
    }
    sent = {
        sample.labels["pid"]: (sample.labels["rank"], sample.labels["peer"], sample.value)
        for sample in families["dlslime_sent_bytes"].samples
    }
    assert sent[str(job[0].pid)] == ("0", "1", 1_200_000)
    assert sent[str(job[1].pid)] == ("1", "0", 1_200_000)
    pending = families["dlslime_pending_operations"].samples
    assert sum(s.value for s in pending if s.labels["pid"] == str(job[0].pid)) == 1


def _histograms(name: str) -> dict[tuple[str, ...], dict[str, float]]:
    """Return by the labels' values the counts up to each bound, and "sum" and "count"."""
    text = command("metrics").stdout
    (family,) = [one for one in text_string_to_metric_families(text) if one.name == name]
    assert family.type == "histogram"
    assert family.documentation
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        kind = sample.name.removeprefix(f"{name}_")
        what = labels.pop("le") if kind == "bucket" else kind
        found.setdefault(tuple(labels[key] for key in sorted(labels)), {})[what] = sample.value
    return found


def _expect_cumulative(numbers: dict[str, float]) -> None:
    bounds = [bound for bound in numbers if bound not in ("sum", "count")]
    assert bounds[-1] == "+Inf"
    assert [float(bound) for bound in bounds] == sorted({float(bound) for bound in bounds})
    counts = [numbers[bound] for bound in bounds]
    assert counts == sorted(counts)
    assert numbers["+Inf"] == numbers["count"]


def test_metrics_have_histograms_of_sizes(job: list[subprocess.Popen[str]]) -> None:
    found = _histograms("dlslime_operation_bytes")
    for rank in job:
        for kind in ("send", "receive"):
            numbers = found[kind, str(rank.pid)]
            _expect_cumulative(numbers)
            assert (numbers["count"], numbers["sum"]) == (1, 1_200_000)
            steps = {bound: numbers[f"{bound:g}"] for bound in (1 << 20, 1 << 22)}
            assert steps == {1 << 20: 0, 1 << 22: 1}
        assert found["read", str(rank.pid)]["count"] == 0


def test_metrics_have_histograms_of_times(job: list[subprocess.Popen[str]]) -> None:
    found = _histograms("dlslime_operation_seconds")
    for rank in job:
        for kind in ("send", "receive"):
            by_size = {size: found[kind, str(rank.pid), size] for size in SIZES}
            assert [one["count"] for one in by_size.values()] == [0, 0, 1]
            for numbers in by_size.values():
                _expect_cumulative(numbers)
            assert by_size["above"]["sum"] > 0


def test_explain_prints_times_and_counts_of_operations(job: list[subprocess.Popen[str]]) -> None:
    text = command("explain", str(job[0].pid)).stdout
    assert re.search(r"operations +size +count +mean +half within +99% within", text), text
    for kind in ("send", "receive"):
        time = r" +[\d,.]+ [um]s"
        assert re.search(rf"{kind} +above +1{time}{time}{time}", text), text
    assert "read" not in text.partition("99% within")[2], "no transfers were made"
    (report,) = read_json("explain", str(job[0].pid))
    assert list(report["operations"]) == ["send", "receive", "read", "write"]
    assert report["operations"]["send"]["bytes"]["sum"] == 1_200_000


def test_metrics_are_served_at_a_port_of_this_host(job: list[subprocess.Popen[str]]) -> None:
    port = str(free_port())
    serve = [sys.executable, "-m", "dlslime_backend", "metrics", "--port", port]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"http://127.0.0.1:{port}/metrics\n"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        finally:
            server.kill()
    assert f'dlslime_sent_messages_total{{group="0",peer="1",pid="{job[0].pid}"' in text, text


def test_process_that_does_not_answer_hides_no_other(job: list[subprocess.Popen[str]]) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("\0dlslime-inspect-test-of-silence")
        silent.listen()
        pids = {report["pid"] for report in reports()}
        assert {rank.pid for rank in job} <= pids
        with pytest.raises(JobError, match="does not answer"):
            reports(os.getpid())


def test_explain_says_why_a_process_can_not_be_asked() -> None:
    for pid, word in ((str(os.getpid()), "has no dlslime engine"), ("4194304", "is no process")):
        done = command("explain", pid)
        assert done.returncode == 1
        assert word in done.stdout, done.stdout


def test_bench_prints_both_backends() -> None:
    report = read_json("bench")
    assert report["route"]["peer"] == 1
    assert [row["size"] for row in report["times"]] == [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
    for row in report["times"]:
        assert row["ratio"] == pytest.approx(row["gloo"] / row["dlslime"])


def test_config_tells_value_and_source() -> None:
    settings = {
        entry["name"]: entry
        for entry in read_json("config", DLSLIME_RING_BYTES="20000", NCCL_IB_TC="106")
    }
    found = {name: (entry["value"], entry["source"]) for name, entry in settings.items()}
    assert found["DLSLIME_RING_BYTES"] == ("20480", "DLSLIME_RING_BYTES"), "rounded up to pages"
    assert found["DLSLIME_IB_TC"] == ("106", "NCCL_IB_TC")
    assert found["DLSLIME_ROUTE"] == ("auto", "default")
    assert found["DLSLIME_GID_INDEX"] == ("the best", "default")


def test_config_has_the_options_and_defaults_of_the_document() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \|([^|]*)\|",
        (ROOT / "docs" / "configuration.md").read_text().partition("## Variables of builds")[0],
        re.MULTILINE,
    )
    documented = {name: default.strip().strip("`") for name, default in rows}
    del documented["TORCH_CPP_LOG_LEVEL"]  # torch's own
    assert {option.name: option.default for option in OPTIONS} == documented


def test_defaults_of_the_engine_are_those_of_the_table() -> None:
    """The engine, with no variable set, has the defaults of the table."""
    from dlslime_backend._load import extension

    clean = {key: value for key, value in os.environ.items() if "DLSLIME" not in key}
    code = (
        "import dlslime_backend._load as l, json; print(json.dumps(l.extension().config_values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean, cwd="/"
    )
    values = json.loads(done.stdout)
    assert set(values) == set(extension().config_values())
    for option in OPTIONS:
        if values.get(option.name):
            assert str(values[option.name]) == option.default, option


def test_cmake_folder_exists() -> None:
    folder = command("cmake-dir").stdout.strip()
    assert os.path.isfile(os.path.join(folder, "dlslimeConfig.cmake"))


def test_unknown_command_is_refused_with_status_2() -> None:
    done = command("docter")
    assert done.returncode == 2
    assert "docter" in done.stderr
