"""benchmarks/gpu_check.py, for machines with GPUs, loses no finding, however steps end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import dlslime_only
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

from gpu.committed.waits import PATTERNS  # noqa: E402
from gpu.runner import questions  # noqa: E402
from gpu.runner.results import Results  # noqa: E402
from gpu.runner.steps import RESERVE_S, Runner, Step  # noqa: E402

# The first lines of a step's program, for leaving findings.
FINDINGS = f"import sys; sys.path.append({str(BENCHMARKS)!r})\n"
FINDINGS += "from gpu.runner.findings import Findings\n"
FOREVER = "import time; time.sleep(1000)"


def runner_of(tmp_path: Path, budget_s: float = 100.0) -> Runner:
    results = Results([tmp_path / "here", tmp_path / "there"], "gpu", budget_s, "a test")
    return Runner(results, budget_s, dict(os.environ), ROOT)


def code(name: str, text: str, limit_s: float = 60.0, needs: tuple[str, ...] = ()) -> Step:
    return Step(name, [sys.executable, "-c", text], limit_s, needs)


def saved(tmp_path: Path, folder: str = "here") -> dict:
    return json.loads((tmp_path / folder / "gpu.json").read_text())


def outcomes(found: dict) -> dict[str, str]:
    return {record["step"]: record["outcome"] for record in found["steps"]}


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


# --- steps ----------------------------------------------------------------------------------------


def test_a_step_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    grandchild = "import signal; signal.signal(signal.SIGABRT, signal.SIG_IGN)\n" + FOREVER
    text = (
        "import os, subprocess, sys, time\n"
        # As torchrun's ranks: in sessions of their own, with the step's output.
        f"ranks = [subprocess.Popen([sys.executable, '-c', {grandchild!r}],\n"
        "         start_new_session=True) for _ in range(2)]\n"
        f"open({str(pids)!r}, 'w').write(' '.join(str(p.pid) for p in ranks))\n"
        f"{FOREVER}\n"
    )
    runner = runner_of(tmp_path)
    begin = time.monotonic()
    assert not runner.run(code("hangs", text, 15))
    assert runner.run(code("after it", "print('well')"))
    assert time.monotonic() - begin < 60  # not the 1,000 s of the holders of the output
    record = saved(tmp_path)["steps"][0]
    assert record["outcome"] == "stopped after 15 s"
    assert "Current thread" in record["output"]  # the stack of the hang
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())
    assert "not_ended" not in record


def test_what_a_good_step_leaves_behind_is_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        "import subprocess, sys\n"
        f"left = subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(str(left.pid))\n"
    )
    assert runner_of(tmp_path).run(code("leaves a process", text))
    assert is_gone(int(pids.read_text()))


def test_a_step_that_dies_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    runner = runner_of(tmp_path)
    runner.run(code("dies", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    runner.run(code("fails", "print('why'); raise SystemExit(3)"))
    runner.run(Step("is missing", ["/no/such/program"], 10))
    runner.run(code("needs it", "pass", needs=("fails",)))
    runner.run(code("is well", "pass"))
    found = saved(tmp_path)
    assert outcomes(found) == {
        "dies": "died of SIGSEGV",
        "fails": "failed with status 3",
        "is missing": "failed",
        "needs it": "not run: fails did not pass",
        "is well": "ok",
    }
    texts = {record["step"]: record.get("output", "") for record in found["steps"]}
    assert texts["fails"].strip() == "why"
    assert "FileNotFoundError" in texts["is missing"]


def test_results_do_not_say_where_this_machine_keeps_things(tmp_path: Path) -> None:
    runner = runner_of(tmp_path)
    assert not runner.run(
        code("fails", f"print({str(ROOT)!r}, {sys.prefix!r}); raise SystemExit(1)")
    )
    runner.results.close()
    for name in ("gpu.json", "gpu.log"):
        text = (tmp_path / "here" / name).read_text()
        assert ". PYTHON" in text
        assert str(ROOT) not in text
        assert sys.prefix not in text


def test_what_was_found_is_saved_after_each_step_in_every_folder(tmp_path: Path) -> None:
    runner = runner_of(tmp_path)
    runner.run(code("finds", FINDINGS + "Findings('a.').answer(b=1)"))
    assert saved(tmp_path)["answers"] == {"a.b": 1}
    hangs = FINDINGS + "Findings('a.').answer(c=2)\nFindings().figure(name='one')\n" + FOREVER
    runner.run(code("finds and hangs", hangs, 15))
    garbage = "import os; open(os.environ['DLSLIME_GPU_CHECK_FINDINGS'], 'w').write('no JSON')"
    runner.run(code("leaves garbage", garbage))
    for folder in ("here", "there"):
        found = saved(tmp_path, folder)
        assert found["answers"] == {"a.b": 1, "a.c": 2}
        assert found["figures"] == [{"step": "finds and hangs", "name": "one"}]
        assert outcomes(found)["leaves garbage"] == "failed"
        assert not found["complete"]
        log = (tmp_path / folder / "gpu.log").read_text()
        assert "== finds\na.b: 1\n" in log


def test_a_budget_that_runs_out_ends_the_step_and_those_after_it(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, budget_s=RESERVE_S + 4)
    begin = time.monotonic()
    runner.run(code("takes all", FOREVER, 900))
    runner.run(code("has no time", "pass"))
    assert time.monotonic() - begin < 60
    found = outcomes(saved(tmp_path))
    assert found["takes all"].startswith("stopped after ")
    assert found["has no time"] == "no time left"


def test_ranks_end_when_one_fails(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        # One write: the ranks share the output, and print() writes the end of a line separately.
        "line = f\"{os.environ['MASTER_ADDR']} {os.environ['WORLD_SIZE']}\\n\"\n"
        "os.write(1, line.encode())\n"
        "said = pathlib.Path(sys.argv[1])\n"
        "if os.environ['RANK'] == '0':\n"
        "    said.touch()\n"
        "    time.sleep(1000)\n"
        "while not said.exists():\n"
        "    time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    launch = [sys.executable, str(BENCHMARKS / "gpu" / "runner" / "launch.py")]
    launch += ["2", str(program), str(tmp_path / "said")]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stdout.splitlines().count("127.0.0.1 2") == 2
    assert "rank 1 ended with status 3" in done.stdout


# --- the whole check ------------------------------------------------------------------------------


def command_of(tmp_path: Path) -> list[str]:
    """Return the command with its own folder for builds, so that other tests find nothing new."""
    places = ["--results", str(tmp_path), "--built", str(tmp_path / "built")]
    return [sys.executable, str(BENCHMARKS / "gpu_check.py"), *places]


def check(
    tmp_path: Path, *options: str, timeout: float = 550, **variables: str
) -> tuple[int, dict, str]:
    done = subprocess.run(
        [*command_of(tmp_path), *options],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **variables},
        check=False,
    )
    path = tmp_path / "gpu.json"
    return done.returncode, json.loads(path.read_text()), done.stdout + done.stderr


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.timeout(1300)
@pytest.mark.alone  # steps have limits of seconds, and detect blocked calls by the time taken
def test_every_step_passes_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, found, output = check(
        tmp_path, "--fake", "--budget", "1100", timeout=1200, OUT=str(out)
    )
    assert status == 0, output
    assert found["complete"]
    assert json.loads((out / "gpu.json").read_text()) == found
    assert (out / "gpu.log").exists()
    unanswered = {
        entry["question"]
        for entry in found["questions"]
        if entry["answer"] == questions.NOT_ANSWERED
    }
    assert unanswered == {"What does a profiler see in exchanges?"}  # CUDA's own profiler
    answers = found["answers"]
    assert answers["committed.all_patterns_end"] is True
    # The patterns do find a way of waiting that can't end.
    assert answers["committed.pattern.words.free"]["LAZY.8"] == "did not end"
    words = [answers[f"committed.pattern.words.{name}"]["LAZY.1"] for name in PATTERNS]
    assert words == ["did not end"] * len(PATTERNS)
    # Each row may once be delayed by other load of the machine, or begin too late to be seen.
    kinds = ("LAZY.8", "EAGER.8", "LAZY.legacy", "EAGER.legacy", "LAZY.1")
    assert "blocked" in {answers[f"lock.{kind}.free"]["copy"] for kind in kinds}
    for row in ("nothing", "malloc"):
        assert {answers[f"lock.{kind}.{row}"]["copy"] for kind in kinds} != {"blocked"}
    assert answers["lock.LAZY.1.streams"]["move"] == 0
    assert 0 < answers["lock.LAZY.8.streams"]["move"] < 40
    assert not [key for key in answers if key.startswith("lock.") and key.endswith(".error")]
    assert min(answers["committed.held.committed.free"].values()) > 0
    assert answers["busy.proved"] is answers["busy.plain_copy_moves"] is True
    assert answers["fit.bandwidth.plain.cuda_ipc_messages"] > 0
    parts = {(entry["part"], entry["variant"]) for entry in found["figures"]}
    assert parts >= {("bandwidth", "plain"), ("latency", "lazy"), ("pages", "copies")}
    assert ("mappings", "plain") in parts
    assert all(entry["value"] > 0 for entry in found["figures"])


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
def test_an_exception_in_a_figure_loses_nothing_else(tmp_path: Path) -> None:
    only = ["--only", "driver probe", "--only", "figures: latency", "--only", "cuda_transfers"]
    status, found, output = check(tmp_path, "--fake", *only, DLSLIME_EAGER_LIMIT="no number")
    assert status == 1
    ends = outcomes(found)
    assert ends["driver probe"] == "ok", output
    assert ends["figures: latency"] == ends["cuda_transfers"] == "failed with status 1"
    assert found["complete"]
    assert found["answers"]["driver.remap.buffer_id_differs"] is True
    failed = next(one for one in found["steps"] if one["step"] == "figures: latency")
    assert "DLSLIME_EAGER_LIMIT" in failed["output"]


NAMELESS = """
#include <string.h>
int gethostname(char *name, unsigned long size) {
  strncpy(name, "no-such-host.invalid", size);
  return 0;
}
"""


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
def test_the_hostname_need_not_resolve(tmp_path: Path) -> None:
    source, library = tmp_path / "nameless.c", tmp_path / "nameless.so"
    source.write_text(NAMELESS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    only = ["--only", "cuda_messages", "--only", "figures: latency"]
    status, found, output = check(tmp_path, "--fake", *only, LD_PRELOAD=str(library))
    assert found["machine"]["hostname_resolves"] != "yes"
    assert status == 0, output
    assert outcomes(found)["cuda_messages"] == "ok"


@dlslime_only
def test_where_there_is_no_gpu_it_says_so(tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    (built / "dlslime_backend").symlink_to(ROOT / "dlslime_backend")
    status, found, output = check(
        tmp_path,
        DLSLIME_CUDA_LIBRARY="/no/such/libcuda.so",
        PATH="/usr/local/bin:/usr/bin:/bin",
    )
    assert status == 2, output
    ends = outcomes(found)
    assert "build" not in ends
    assert ends["linkage"] == "ok", output
    assert (built / "committed_waits").exists()
    # ninja is beside the interpreter, in a folder not in the PATH; the folder's path is hidden.
    assert found["machine"]["ninja"] == "PYTHON/bin/ninja"
    told = {step for step, end in ends.items() if end == "no GPU"}
    assert told >= {"driver probe", "lock matrix", "committed waits", "cuda_messages", "profiler"}
    assert set(ends.values()) == {"ok", "no GPU"}


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
def test_what_is_found_is_saved_when_it_is_told_to_end(tmp_path: Path) -> None:
    command = [*command_of(tmp_path), "--fake"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("== lock matrix"):
            break
    process.send_signal(signal.SIGTERM)
    output = process.stdout.read()
    assert process.wait(60) == 1
    assert "stopped by SIGTERM" in output
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert not found["complete"]
    assert outcomes(found)["lock matrix"] == "interrupted: StoppedError SIGTERM"
    assert found["answers"]["driver.remap.buffer_id_differs"] is True


ROWS = """
import ctypes, os, sys
sys.path.append({benchmarks!r})
from gpu.driver import lock_matrix, rows

def keeps_the_interpreter(worker):
    driver = ctypes.PyDLL(os.environ["DLSLIME_CUDA_LIBRARY"])
    return lambda: driver.cuStreamSynchronize(ctypes.c_void_p(rows.raw(worker.held)))

rows.ROWS = {{
    "malloc": rows.ROWS["malloc"],
    "dies": lambda worker: lambda: os._exit(5),
    "keeps the interpreter": keeps_the_interpreter,
    "raises": lambda worker: lambda: 1 / 0,
    "hangs": lambda worker: lambda: ctypes.PyDLL(None).sleep(1000),
    "cpu": rows.ROWS["cpu"],
}}
lock_matrix.SETTINGS = [("EAGER", "8")]
sys.exit(lock_matrix.program())
"""


@dlslime_only
@pytest.mark.usefixtures("_fake_gpus")
def test_rows_of_the_lock_matrix_that_hang_or_die_lose_no_other(tmp_path: Path) -> None:
    import fake_gpu

    program = tmp_path / "rows.py"
    program.write_text(ROWS.format(benchmarks=str(BENCHMARKS)))
    runner = runner_of(tmp_path, budget_s=400)
    runner.environ["DLSLIME_CUDA_LIBRARY"] = str(fake_gpu.driver())
    assert runner.run(Step("rows", [sys.executable, str(program)], 300))
    answers = {
        key.removeprefix("lock.EAGER.8."): row for key, row in saved(tmp_path)["answers"].items()
    }
    assert "error" not in answers["malloc"]
    assert answers["dies"]["error"] == "its process died (5)"
    assert answers["keeps the interpreter"]["rescued"] is True
    assert answers["raises"]["error"].startswith("ZeroDivisionError")
    assert not any("rescued" in answers[name] for name in ("malloc", "raises", "cpu"))
    assert answers["hangs"]["error"] == "hangs though the stream was let go"
    assert answers["cpu"]["returns_ms"] == "when the stream goes on"
