"""The layer check (.ci/check_layers.py) passes here and catches each kind of wrong include."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paths import ROOT

SCRIPT = ROOT / ".ci" / "check_layers.py"

FILES = {
    "csrc/base/status.h": "",
    "csrc/interface/carrier.h": '#include "base/status.h"\n',
    "csrc/engine/engine.h": '#include "base/status.h"\n#include "interface/carrier.h"\n',
    "csrc/transports/transports.cpp": '#include "transports/shm/doorbell.h"\n',
    "csrc/transports/shm/doorbell.h": '#include <vector>\n#include "base/status.h"\n',
    "csrc/transports/gloo/frames.h": '#include "interface/carrier.h"\n',
    "csrc/transports/rdma/device/verbs.h": "#include <infiniband/verbs.h>\n",
    "csrc/engine/two_sided/matcher.h": "",
    "csrc/engine/peer/group.h": '#include "engine/two_sided/matcher.h"\n',
    "torch_ext/support/gil.h": "#include <torch/extension.h>\n",
    "torch_ext/c10d/work.h": '#include "torch_ext/support/gil.h"\n',
    "torch_ext/c10d/backend.cpp": '#include "work.h"\n#include "csrc/engine/engine.h"\n',
}


def load_script() -> ModuleType:
    """Load the script as a module, each time anew."""
    spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    result = run_check(make_tree(tmp_path, "csrc/base/status.h", "#include <string>\n"))
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("changed", "included", "reason"),
    [
        ("csrc/base/status.h", '"interface/carrier.h"', "base may not include csrc/interface"),
        ("csrc/base/status.h", '"engine/engine.h"', "base may not include csrc/engine"),
        ("csrc/base/status.h", "<torch/all.h>", "without torch"),
        ("csrc/base/status.h", "<Python.h>", "without torch"),
        ("csrc/engine/engine.h", '"pybind11/pybind11.h"', "without torch"),
        ("csrc/engine/engine.h", '"transports/shm/doorbell.h"', "engine may not include csrc/"),
        ("csrc/engine/engine.h", '"../../torch_ext/c10d/work.h"', "not include torch_ext/c10d"),
        (
            "csrc/engine/two_sided/matcher.h",
            '"engine/peer/group.h"',
            "may not include csrc/engine/peer",
        ),
        ("csrc/engine/peer/group.h", '"engine/engine.h"', "peer may not include csrc/engine"),
        (
            "csrc/transports/shm/doorbell.h",
            '"csrc/transports/gloo/frames.h"',
            "shm may not include",
        ),
        ("csrc/transports/shm/doorbell.h", '"engine/engine.h"', "shm may not include csrc/engine"),
        ("csrc/transports/shm/doorbell.h", "<infiniband/verbs.h>", "only csrc/transports/rdma"),
        ("csrc/transports/shm/doorbell.h", '"missing.h"', "no such file"),
        ("csrc/cuda/driver/driver.h", "<cuda.h>", "CUDA toolkit"),
        ("csrc/spare/rooms.h", "<vector>", "not in ARROWS"),
        (
            "torch_ext/c10d/work.h",
            '"transports/shm/doorbell.h"',
            "c10d may not include csrc/transports",
        ),
        (
            "torch_ext/c10d/work.h",
            '"engine/peer/group.h"',
            "c10d may not include csrc/engine/peer",
        ),
        ("torch_ext/support/gil.h", '"torch_ext/c10d/work.h"', "not include torch_ext/c10d"),
        ("torch_ext/c10d/work.h", "<cuda_runtime.h>", "CUDA toolkit"),
    ],
)
def test_violation_is_caught(tmp_path: Path, changed: str, included: str, reason: str) -> None:
    result = run_check(make_tree(tmp_path, changed, f"  #  include {included}\n"))
    assert result.returncode == 1
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith(f"{changed}:")
    assert reason in result.stdout


def test_circle_of_arrows_is_found() -> None:
    layers = load_script()
    assert layers.circle() == []
    layers.ARROWS["csrc/engine/two_sided"] += " csrc/engine/peer"
    assert "csrc/engine/two_sided" in "".join(layers.circle())


def test_arrow_without_use_is_found(tmp_path: Path) -> None:
    layers = load_script()
    layers.ARROWS = {"csrc/engine/peer": "csrc/engine/two_sided csrc/engine/gpu"}
    (text,) = layers.unused_arrows(make_tree(tmp_path, "csrc/engine/peer/group.h", ""))
    assert "no file of csrc/engine/peer includes csrc/engine/gpu" in text
