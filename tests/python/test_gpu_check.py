"""benchmarks/gpu_check.py, for machines with GPUs, works: without one, on the fake driver."""

import json
import subprocess
import sys
from pathlib import Path

from harness import dlslime_only

ROOT = Path(__file__).parents[2]
FIGURES = {
    "256 MiB",
    "1 MiB, back to back",
    "2,048 pages of 16 KiB",
    "one way 8 B",
    "one way 1 KiB",
}
FIGURES |= {"one way 8 KiB", "host in isend()", "host in wait()"}


@dlslime_only
def test_every_figure_is_measured(tmp_path: Path) -> None:
    made = tmp_path / "figures.json"
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--json", made]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(made.read_text())
    assert {entry["name"] for entry in found["figures"]} == FIGURES
    assert all(entry["value"] > 0 for entry in found["figures"])
    assert found["traffic"]["1"]["cuda_ipc_messages"] > 0
    command += ["--pages", "alone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    alone = json.loads(made.read_text())["figures"]
    assert [entry["name"] for entry in alone] == ["alone"]


def test_steps_that_fail_or_hang_are_told(tmp_path: Path) -> None:
    program = tmp_path / "steps.py"
    program.write_text(
        "import json, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "from gpu_check import Check\n"
        "check = Check({'A': '1'})\n"
        "script = 'import os, sys, time; print(os.environ[\"A\"]);'\n"
        "script += 'time.sleep(float(sys.argv[1]));'\n"
        "def step(code, seconds, limit_s, **more):\n"
        "    command = [sys.executable, '-c', script + 'sys.exit(%d)' % code, str(seconds)]\n"
        "    return check.run('step', command, limit_s, **more)\n"
        "ends = [step(0, 0, 30), step(3, 0, 30, A='2'), step(0, 60, 1)]\n"
        "print(json.dumps([ends, [entry['output'] for entry in check.steps]]))\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=True
    )
    ends, outputs = json.loads(done.stdout.splitlines()[-1])
    assert ends == [True, False, False]
    assert outputs == ["", "2\n", "\nnot over after 1 s"]
