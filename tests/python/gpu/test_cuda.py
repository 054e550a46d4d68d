"""CUDA tensors between processes, on fake GPUs (fake_gpu)."""

from pathlib import Path

import pytest

from harness import dlslime_only
from paths import PROGRAMS
from programs.torchrun import torchrun

CUDA = PROGRAMS / "cuda"

pytestmark = [dlslime_only, pytest.mark.usefixtures("_fake_gpus")]

# Ways for ranks to reach each other, for torch to make memory, and properties of the driver.
AT_OWN_RISK = {"DLSLIME_STREAM_WAITS": "on"}
WAYS = {
    "shm": {},
    "tcp": {"DLSLIME_ROUTE": "tcp"},
    "gloo": {"DLSLIME_ROUTE": "gloo"},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "late streams": {"FAKE_CUDA_DELAY_US": "2000"},
    "old driver": {"FAKE_CUDA_VERSION": "11040"},
    "one queue": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "streams wait": AT_OWN_RISK,
    "streams wait, tcp": {"DLSLIME_ROUTE": "tcp", **AT_OWN_RISK},
    "streams wait, gloo": {"DLSLIME_ROUTE": "gloo", **AT_OWN_RISK},
    "late streams wait": {"FAKE_CUDA_DELAY_US": "2000", **AT_OWN_RISK},
}


@pytest.mark.parametrize("way", WAYS)
def test_messages(way: str, tmp_path: Path) -> None:
    arguments = [] if "DLSLIME_STREAM_WAITS" in WAYS[way] else ["--host-waits"]
    status, output = torchrun(CUDA / "cuda_messages.py", arguments, 2, tmp_path, env=WAYS[way])
    assert status == 0, output
    assert output.splitlines()[-1] == "all right"


@pytest.mark.parametrize("way", WAYS)
def test_transfers(way: str, tmp_path: Path) -> None:
    status, output = torchrun(CUDA / "cuda_transfers.py", [], 2, tmp_path, env=WAYS[way])
    assert status == 0, output
    assert output.splitlines()[-1] == "all right"


def test_memory_of_a_process_without_pidfd_getfd_goes_from_gpu_to_gpu(tmp_path: Path) -> None:
    """A profile of seccomp refuses the call, so the owner hands the descriptors over."""
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    status, output = torchrun(CUDA / "handing_over.py", [], 2, tmp_path, env=env)
    assert status == 0, output
    assert output.splitlines()[-1] == "all right"
    assert "pinned memory" not in output


def test_a_full_launch_queue_ends_with_the_time_out(tmp_path: Path) -> None:
    env = {"FAKE_CUDA_ROOM": "1000", **AT_OWN_RISK}
    status, output = torchrun(CUDA / "cuda_launches.py", [], 2, tmp_path, env=env)
    assert status == 0, output
    assert "a call to the GPU's driver does not return while streams wait" in output
    assert "made no copy until the stream was let go" in output
    assert output.splitlines()[-1] == "all right"


def test_collectives(tmp_path: Path) -> None:
    status, output = torchrun(CUDA / "cuda_collectives.py", [], 3, tmp_path)
    assert status == 0, output
    assert output.count("all right") == 3


def test_collectives_of_gpu_check(tmp_path: Path) -> None:
    status, output = torchrun(CUDA / "cuda_nccl.py", [], 2, tmp_path)
    assert status == 0, output
    assert output.count("all right") == 2
