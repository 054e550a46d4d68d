"""Description of the machine for gpu_check; every question may stay without an answer."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.driver.api import Driver
from gpu.runner.findings import Findings


def said(*command: str) -> list[str]:
    """Return the lines printed by a command; none if the command can't be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines()


def attempt(question: Callable[[], Any]) -> Any:
    """Return the answer, or the reason for having none."""
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return f"{type(error).__name__}: {error}"


def gpus_of_torch() -> int:
    """Return the number of GPUs that torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def about_torch() -> dict[str, Any]:
    """Describe torch, and the machine as in the report of every benchmark."""
    import torch

    from measuring.report import environment

    return {**environment(), "torch_cuda": torch.version.cuda}


def resolves() -> str:
    """Tell whether the host's name resolves: torchrun needs the name, and gpu_check does not."""
    socket.getaddrinfo(socket.gethostname(), None)
    return "yes"


def main() -> None:
    """Answer all questions, beginning with those that decide which steps can be run."""
    findings = Findings()
    findings.machine(
        driver_gpus=attempt(
            lambda: Driver().number("cuDeviceGetCount", of=ctypes.c_int),
        )
    )
    findings.machine(torch_gpus=attempt(gpus_of_torch))
    about = attempt(about_torch)
    findings.machine(**about if isinstance(about, dict) else {"torch": about})
    findings.machine(
        compiler=said("c++", "--version")[:1],
        nvcc=said("nvcc", "--version")[-1:],
        ninja=shutil.which("ninja") or "none",
        verbs_header=Path("/usr/include/infiniband/verbs.h").exists(),
        hostname_resolves=attempt(resolves),
    )
    query = "name,driver_version,memory.total,pci.bus_id,compute_mode,persistence_mode"
    findings.machine(
        gpus=said("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"),
        topology=said("nvidia-smi", "topo", "-m"),
    )


if __name__ == "__main__":
    main()
