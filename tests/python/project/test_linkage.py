"""Linkage of the extension: one binary serves machines with and without GPUs and NICs."""

import subprocess

from dlslime_backend._load import extension


def _needed() -> list[str]:
    path = extension().__file__
    assert path is not None
    dynamic = subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    ).stdout
    return [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]


def test_neither_cuda_nor_verbs_are_needed() -> None:
    needed = _needed()
    assert any(name.startswith("libc10.so") for name in needed), needed
    for library in ("cuda", "nccl", "ibverbs", "rdmacm", "mlx5"):
        assert not [name for name in needed if library in name], needed


if __name__ == "__main__":  # for benchmarks/gpu_check, on machines without pytest
    test_neither_cuda_nor_verbs_are_needed()
