"""The benchmarks of the pages, with tiny sizes: tables, files, exit statuses, and refusals."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import dlslime_only
from nodes import free_port
from paths import BENCHMARKS

pytestmark = dlslime_only

TINY = ["--size", "0", "12", "--num-iteration", "3", "--num-warmup-iteration", "1"]
SHORT = ["--num-concurrency", "2", "--device", "cpu"]
COLUMNS = [
    "Transfer Engine",
    "#Channels",
    "Message Size (bytes)",
    "Batch Size",
    "Num Concurrency",
    "Total Transport (bytes)",
    "Avg Latency(ms)",
    "Bandwidth(MB/s)",
]
PNG = b"\x89PNG\r\n"

# A program with something replaced before the program begins.
CHANGED = """
import sys
sys.path.insert(0, {benchmarks!r})
sys.argv[0] = {program!r}
import {program}
{change}
sys.exit({program}.main())
"""

# The last byte of a batch is not moved.
SHORT_BY_ONE = """
from pages import engines
class Short(engines.Dlslime):
    def prepare(self, pieces, write):
        *rest, (at, size) = pieces
        return super().prepare([*rest, (at, size - 1)], write)
engines.ENGINES["dlslime"] = Short
"""

# Each byte sent differs in a bit.
FLIPPED = """
import torch.distributed as dist
real = dist.isend
dist.isend = lambda tensor, *args, **named: real(tensor ^ 1, *args, **named)
"""

# torch's transports, as from torch 2.15 on, with dlslime's transport and a transport without a
# library.
TRANSPORTS = """
import types, torch
made = types.ModuleType("torch.distributed._transport")
class Transport:
    def __init__(self, device=None):
        self.device = None if device is None else torch.device(device)
def new_transport(name, device=None, **options):
    if name == "absent":
        raise ImportError("there is no such library")
    from dlslime_backend.integrations.torch_transport import DlslimeTransport
    class Wrong(DlslimeTransport):
        def write(self, *args, **named):
            return 0
    return (Wrong if name == "wrong" else DlslimeTransport)(device, **options)
made.Transport, made.new_transport = Transport, new_transport
made.available_transports = lambda: ["dlslime", "absent", "wrong"]
sys.modules["torch.distributed._transport"] = torch.distributed._transport = made
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def command(program: str | Path, arguments: Sequence[Any]) -> list[str]:
    path = program if isinstance(program, Path) else BENCHMARKS / program
    return [sys.executable, str(path), *map(str, arguments)]


def started(line: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(line, env=env, **pipes)


def ended(processes: Sequence[subprocess.Popen[str]], status: int) -> list[str]:
    """Return the outputs of the processes; all must end with `status`, and none is left running."""
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [status] * len(processes), outputs
    return outputs


def ran(program: str | Path, *arguments: Any, ranks: int = 0, status: int = 0) -> str:
    """Run a program to its end, perhaps in ranks as made by torchrun; return the first output."""
    line = command(program, arguments)
    if not ranks:
        return ended([started(line, environment())], status)[0]
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    each = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return ended([started(line, environment() | job | mine) for mine in each], status)[0]


def ran_both(
    program: str | Path, first: Sequence[Any], second: Sequence[Any], status: int = 0
) -> str:
    """Run two processes that meet; return the output of the second."""
    lines = [command(program, arguments) for arguments in (first, second)]
    return ended([started(line, environment()) for line in lines], status)[1]


def count(word: str, table: str) -> int:
    """Return the number of cells equal to `word` in the last column of a table."""
    return len(re.findall(rf"^\|.* {word} +\|$", table, re.MULTILINE))


def changed(folder: Path, program: str, change: str) -> Path:
    path = folder / f"changed_{program}.py"
    text = CHANGED.format(benchmarks=str(BENCHMARKS), program=program, change=change)
    path.write_text(text)
    return path


def files(folder: Path) -> list[str]:
    table, figures, drawn = (str(folder / f"out.{ending}") for ending in ("csv", "json", "png"))
    return ["--save-csv", "--csv-filename", table, "--json", figures, "--plot", drawn]


def found(folder: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """Return the rows of the CSV, with the header first, and the JSON; check the plot's format."""
    assert (folder / "out.png").read_bytes().startswith(PNG)
    with (folder / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert all(len(row) == len(rows[0]) for row in rows)
    report: dict[str, Any] = json.loads((folder / "out.json").read_text())
    assert report["environment"]["torch"]
    for row in report["rows"]:
        assert row["verified"]
        assert 0 < row["p50"] <= row["p90"] <= row["p99"]
        assert row["bandwidth"] > 0
        assert row["cpu"] >= 0
    return rows, report


def test_aggregated_transfers_have_the_columns_of_the_pages(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    line = command("agg_transfer_bench_spmd.py", [*TINY, *SHORT, *files(tmp_path)])
    (output,) = ended([started([*launcher, *line[1:]], environment())], 0)
    rows, report = found(tmp_path)
    assert rows[0][: len(COLUMNS)] == COLUMNS
    assert [row[:6] for row in rows[1:]] == [
        ["dlslime", "1", "8", "1", "2", "48"],
        ["dlslime", "1", "32,768", "1", "2", "196,608"],
    ]
    assert [row["samples"] for row in report["rows"]] == [3, 3]
    assert "| " + " | ".join(COLUMNS) in output


def test_aggregated_transfers_of_several_engines(tmp_path: Path) -> None:
    engines = ["--transfer-engine", "upstream", "dlslime,gloo", "--opcode", "read"]
    program = "agg_transfer_bench_spmd.py"
    output = ran(program, *TINY, *SHORT, *engines, *files(tmp_path), ranks=2)
    assert "without upstream: --wheels names no folder" in output
    rows, report = found(tmp_path)
    assert [row[0] for row in rows[1:]] == ["dlslime"] * 2 + ["gloo"] * 2
    assert list(report["missing"]) == ["upstream"]


def test_aggregated_transfers_over_two_pairs_that_tell_their_end(tmp_path: Path) -> None:
    more = ["--with-imm-data", "--batch-size", "3", "--check", "iteration", "--memory", "1"]
    program = "agg_transfer_bench_spmd.py"
    output = ran(program, "--size", "16", *TINY[3:], *SHORT, *more, *files(tmp_path), ranks=4)
    assert count("yes", output) == 1
    _, report = found(tmp_path)
    (row,) = report["rows"]
    assert row["channels"] == 2
    assert row["nbytes"] == 3 * 2 * 3 * row["size"]  # iterations, concurrency, batch
    assert row["samples"] == 6


def test_wrong_bytes_of_aggregated_transfers_are_found(tmp_path: Path) -> None:
    program = changed(tmp_path, "agg_transfer_bench_spmd", SHORT_BY_ONE)
    output = ran(program, *TINY, *SHORT, ranks=2, status=1)
    assert "wrong bytes by dlslime: 32768 bytes, place 0: 1 of 32768 bytes are wrong" in output
    assert count("WRONG", output) == 2


def test_transfers_with_the_flags_of_the_python_program(tmp_path: Path) -> None:
    ends = ["--target-endpoint", f"127.0.0.1:{free_port()}", "--device", "cpu"]
    asked = [*TINY, "--num-concurrency", "2", *files(tmp_path)]
    ran_both("transfer_bench.py", ["--rank", "1", *ends], ["--rank", "0", *ends, *asked])
    rows, _ = found(tmp_path)
    assert rows[0][:4] == [
        "Message Size (bytes)",
        "Total Transport (bytes)",
        "Target Affinity",
        "Initiator Affinity",
    ]
    assert [row[:4] for row in rows[1:]] == [["8", "16", "0", "1"], ["32,768", "65,536", "0", "1"]]


def test_transfers_with_the_flags_of_the_cpp_program(tmp_path: Path) -> None:
    ends = [f"--target_endpoint=127.0.0.1:{free_port()}", "--device=cpu"]
    asked = ["--block_size=3000", "--batch_size=5", "--concurrent_num=2", "--duration=0.2"]
    output = ran_both(
        "transfer_bench.py",
        ["--mode=target", *ends],
        ["--mode=initiator", *ends, *asked, *files(tmp_path)],
    )
    _, report = found(tmp_path)
    assert report["rows"][0]["size"] == 3000
    assert f"Total trips       : {2 * report['rows'][0]['samples']}\n" in output
    assert "MiB/s" in output


def test_transfers_end_badly_with_wrong_bytes_and_without_the_only_engine(tmp_path: Path) -> None:
    ends = ["--target-endpoint", f"127.0.0.1:{free_port()}", *SHORT, *TINY]
    program = changed(tmp_path, "transfer_bench", SHORT_BY_ONE)
    output = ran_both(program, ["--rank", "1", *ends], ["--rank", "0", *ends], status=1)
    assert "1 of 32768 bytes are wrong" in output
    ends[1] = f"127.0.0.1:{free_port()}"
    ends += ["--transfer-engine", "upstream", "--wheels", str(tmp_path)]
    both = (["--rank", "1", *ends], ["--rank", "0", *ends])
    output = ran_both("transfer_bench.py", *both, status=2)
    assert output == f"without upstream: there is no wheel of dlslime 0.1.23 in {tmp_path}\n"


def test_scheduler_measures_what_the_host_has(tmp_path: Path) -> None:
    ends = ["--target_endpoint", f"127.0.0.1:{free_port()}", "--device", "cpu"]
    asked = ["--block_size", "4096", "--batch_size", "4", "--duration", "0.1", *files(tmp_path)]
    ran_both(
        "scheduler_bench.py", ["--mode", "target", *ends], ["--mode", "initiator", *ends, *asked]
    )
    rows, report = found(tmp_path)
    assert rows[0][0] == "NICs"
    assert len(rows) == 1 + len(report["rows"])


def test_backends_side_by_side(tmp_path: Path) -> None:
    asked = ["--size", "2", "40000", "--iterations", "4", "--backends", "gloo,dlslime,mpi"]
    output = ran("sendrecv_bench.py", *asked, *SHORT, *files(tmp_path), ranks=2)
    assert "without mpi: " in output
    rows, _ = found(tmp_path)
    sizes = [(row[0], row[2]) for row in rows[1:]]
    assert sizes == [
        ("gloo", "8"),
        ("gloo", "160,000"),
        ("dlslime", "8"),
        ("dlslime", "160,000"),
    ]


def test_backends_without_torchrun_and_with_wrong_bytes(tmp_path: Path) -> None:
    program = changed(tmp_path, "sendrecv_bench", FLIPPED)
    asked = ["--master-port", str(free_port()), "--sizes", "100", "--iterations", "2"]
    asked += ["--backends", "dlslime", *SHORT]
    both = (["--mode", "recv", *asked], ["--mode", "send", *asked])
    output = ran_both(program, *both, status=1)
    assert "wrong bytes by dlslime: 100 bytes, place 0: 100 of 100 bytes are wrong" in output


def test_every_pair_of_three(tmp_path: Path) -> None:
    asked = ["--size", "10", "--num-iteration", "2", "--device", "cpu", *files(tmp_path)]
    ran("interconnect.py", *asked, ranks=3)
    rows, report = found(tmp_path)
    assert [row[0] for row in rows[1:]] == rows[0][1:] == report["labels"]
    for number, row in enumerate(rows[1:]):
        rates = row[1:]
        assert rates.pop(number) == "-"
        assert all(float(rate) > 0 for rate in rates)


def test_wrong_bytes_between_a_pair_are_found(tmp_path: Path) -> None:
    program = changed(tmp_path, "interconnect", SHORT_BY_ONE)
    asked = ["--size", "10", "--num-iteration", "1", "--device", "cpu", "--opcode", "write"]
    assert "1 of 8192 bytes are wrong" in ran(program, *asked, ranks=2, status=1)


def test_transports_of_a_torch_that_has_them(tmp_path: Path) -> None:
    program = changed(tmp_path, "torch_transports", TRANSPORTS)
    asked = ["--iterations", "2", "--sizes", "8,5000", "--device", "cpu", "--save-csv"]
    asked += ["--csv-filename", tmp_path / "out.csv"]
    output = ran(program, *asked, ranks=2, status=1)
    assert "without absent: ImportError: there is no such library" in output
    rows = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
    kinds = [(row[0], row[1], row[3], row[-1]) for row in rows[1:]]
    assert kinds == [
        ("dlslime", "write", "8", "yes"),
        ("dlslime", "read", "8", "yes"),
        ("dlslime", "write", "5,000", "yes"),
        ("dlslime", "read", "5,000", "yes"),
        ("wrong", "write", "8", "WRONG"),
        ("wrong", "read", "8", "yes"),
        ("wrong", "write", "5,000", "WRONG"),
        ("wrong", "read", "5,000", "yes"),
    ]


# One process for all refusals, since each process would import torch.
REFUSALS = """
import contextlib, importlib, io, json, sys
sys.path.insert(0, {benchmarks!r})
answers = []
for program, *arguments in {cases!r}:
    sys.argv = [program + ".py", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            status = importlib.import_module(program).main()
        except SystemExit as end:
            status = end.code
    answers.append((status, said.getvalue()))
print(json.dumps(answers))
"""

REFUSED = {
    "there is no transfer engine 'foo'": "agg_transfer_bench_spmd --transfer-engine foo",
    "argument --size: 'x' is not a number": "agg_transfer_bench_spmd --size x",
    "99 is not in 0 .. 32": "agg_transfer_bench_spmd --size 99",
    "0 is not in 1 .. ": "agg_transfer_bench_spmd --batch-size 0",
    "RANK is not set: start this by torchrun": "agg_transfer_bench_spmd",
    "goes with --opcode write only": "agg_transfer_bench_spmd --with-imm-data --opcode read",
    "/proc/none/a.json can't be written": "agg_transfer_bench_spmd --json /proc/none/a.json",
    "unrecognized arguments: --none": "agg_transfer_bench_spmd --none",
    "one of the arguments --rank --mode is required": "transfer_bench",
    "'here' is not HOST:PORT": "transfer_bench --rank 0 --target-endpoint here",
    "there is no host x.invalid": "transfer_bench --rank 1 --target-endpoint x.invalid:5000",
    "can't listen at 192.0.2.1:66": "transfer_bench --rank 0 --target-endpoint 192.0.2.1:66",
    "no process listens at": "transfer_bench --rank 1 --target-endpoint localhost:1 --patience 0.1",
    "one transfer engine at a time": "transfer_bench --rank 1 --transfer-engine nixl,mooncake",
    "--buffer_size is less": "transfer_bench --mode target --buffer_size 1 --block_size 60",
    "there is no RDMA device none": "scheduler_bench --mode target --device_name none",
    "are dlslime's alone": "scheduler_bench --mode target --transfer-engine nixl",
    "there is no backend 'foo'": "sendrecv_bench --backends foo",
    "does not go with --device cpu": "interconnect --between gpus --device cpu",
    "argument --sizes: 'a' is not a number": "torch_transports --sizes a",
}


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "refusals.py"
    cases = [line.split() for line in REFUSED.values()]
    script.write_text(REFUSALS.format(benchmarks=str(BENCHMARKS), cases=cases))
    answers = json.loads(ran(script))
    for (status, said), reason, case in zip(answers, REFUSED, cases, strict=True):
        assert status == 2, (case, said)
        assert reason in said, case
        assert said.startswith(f"{case[0]}.py: "), said
        assert said.count("\n") == 1, said


def test_older_torch_is_told_of_in_one_line(tmp_path: Path) -> None:
    without = "import torch; sys.modules['torch.distributed._transport'] = None"
    output = ran(changed(tmp_path, "torch_transports", without))
    assert output.startswith("skipped: torch ")
    assert output.count("\n") == 1


PLAIN = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
sys.modules["matplotlib"] = sys.modules["rich.console"] = None
from pages import output, plots
sys.stdout.isatty = lambda: True
with output.Screen(["a", "b"], True) as screen:
    screen.row(["1", "2"])
    screen.progress("a", 0.5)
plots.curves(Path("none.png"), "nothing", {{"a": [(8, 1.0, 1.0)]}})
plots.heat_map(Path("none.png"), "nothing", ["a"], [[1.0]])
"""


def test_without_matplotlib_and_rich_lines_are_printed(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN.format(benchmarks=str(BENCHMARKS)))
    assert ran(script) == "a  b\n1  2\n" + "no plot: matplotlib is not installed\n" * 2
