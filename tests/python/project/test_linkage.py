"""Linkage of our libraries: one binary serves machines of any age, with GPUs, NICs or neither."""

import re
import subprocess
from pathlib import Path

from dlslime_backend._load import extension

# The newest versions of symbols on machines of manylinux_2_28.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}


def _extension() -> Path:
    path = extension().__file__
    assert path is not None
    return Path(path)


def _readelf(option: str, path: Path) -> list[str]:
    done = subprocess.run(
        ["readelf", "--wide", option, path], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def _needed() -> list[str]:
    dynamic = _readelf("-d", _extension())
    return [line.split("[")[1].rstrip("]") for line in dynamic if "(NEEDED)" in line]


def test_nothing_newer_than_manylinux_2_28_is_called() -> None:
    engine = _extension().parents[1] / "libdlslime.so"
    for path in (engine, _extension()):
        found = 0
        for line in _readelf("--dyn-syms", path):
            for name, version in re.findall(r"@+(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)", line):
                found += 1
                assert tuple(map(int, version.split("."))) <= NEWEST[name], f"{path}: {line}"
        assert found > 100, path


def test_neither_cuda_nor_verbs_are_needed() -> None:
    needed = _needed()
    assert any(name.startswith("libc10.so") for name in needed), needed
    for library in ("cuda", "nccl", "ibverbs", "rdmacm", "mlx5"):
        assert not [name for name in needed if library in name], needed


if __name__ == "__main__":  # for benchmarks/gpu_check, on machines without pytest
    test_neither_cuda_nor_verbs_are_needed()
