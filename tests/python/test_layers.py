"""The layer check (.ci/check_layers.py) passes here and catches each kind of wrong include."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "check_layers.py"

FILES = {
    "csrc/core/status.h": "",
    "csrc/engine/engine.h": '#include "core/status.h"\n',
    "csrc/engine/transports.cpp": '#include "shm/doorbell.h"\n#include "gloo/carrier.h"\n',
    "csrc/shm/doorbell.h": '#include <vector>\n#include "core/status.h"\n',
    "csrc/gloo/carrier.h": '#include "core/status.h"\n',
    "csrc/gloo/frames.h": '#include "gloo/carrier.h"\n',
    "torch_ext/work.h": "#include <torch/extension.h>\n",
    "torch_ext/backend.cpp": '#include "work.h"\n#include "csrc/engine/engine.h"\n',
    "torch_ext/carrier.cpp": '#include "gloo/carrier.h"\n',
}


def run_check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=60, check=False
    )


def make_tree(root: Path, changed: str, line: str) -> Path:
    for name, text in {**FILES, changed: FILES.get(changed, "") + line}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_project_has_no_violation() -> None:
    result = run_check(ROOT)
    assert (result.returncode, result.stdout) == (0, "")


def test_tree_that_follows_the_arrows_passes(tmp_path: Path) -> None:
    result = run_check(make_tree(tmp_path, "csrc/core/status.h", "#include <string>\n"))
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("changed", "included", "reason"),
    [
        ("csrc/core/status.h", '"engine/engine.h"', "core may not include csrc/engine"),
        ("csrc/core/status.h", "<torch/all.h>", "without torch"),
        ("csrc/core/status.h", "<Python.h>", "without torch"),
        ("csrc/engine/engine.h", '"pybind11/pybind11.h"', "without torch"),
        ("csrc/engine/engine.h", '"shm/doorbell.h"', "engine may not include csrc/shm"),
        ("csrc/engine/engine.h", '"../../torch_ext/work.h"', "engine may not include torch_ext"),
        ("csrc/shm/doorbell.h", '"csrc/gloo/carrier.h"', "shm may not include csrc/gloo"),
        ("csrc/shm/doorbell.h", '"engine/engine.h"', "shm may not include csrc/engine"),
        ("csrc/shm/doorbell.h", "<infiniband/verbs.h>", "only csrc/rdma"),
        ("csrc/shm/doorbell.h", '"missing.h"', "no such file"),
        ("csrc/cuda/driver.h", "<cuda.h>", "CUDA toolkit"),
        ("torch_ext/work.h", '"shm/doorbell.h"', "torch_ext may not include csrc/shm"),
        ("torch_ext/work.h", '"gloo/frames.h"', "torch_ext may not include csrc/gloo"),
        ("torch_ext/work.h", "<cuda_runtime.h>", "CUDA toolkit"),
    ],
)
def test_violation_is_caught(tmp_path: Path, changed: str, included: str, reason: str) -> None:
    result = run_check(make_tree(tmp_path, changed, f"  #  include {included}\n"))
    assert result.returncode == 1
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith(f"{changed}:")
    assert reason in result.stdout
