#!/usr/bin/env python3
"""Make wheels for several versions of torch and of Python, and a source distribution.

    python package/make_wheels.py                       # torch 2.11 to 2.15, all Pythons found
    python package/make_wheels.py --torch .venv/lib/python3.11/site-packages/torch --python 3.11

A wheel has the engine once and an extension for each torch; each Python needs a wheel of its own.
Wheels are built from the source distribution, which shows that it builds.
auditwheel strips the libraries, and checks that they call nothing newer than manylinux_2_28, the
platform of torch's own wheels.
The torches are downloaded and unpacked below build/torches, some 600 MB each, and never imported.
Run it in an environment with auditwheel, patchelf and build (.ci/requirements-dev.txt).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from package.torches import Torch, torch_in  # noqa: E402

# The last patch of each minor version: an extension needs nothing that a patch adds.
TORCHES = ["2.11.0", "2.12.0", "2.13.0", "2.14.1", "2.15.0"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PLATFORM = "manylinux_2_28_x86_64"
# What compiling needs of a torch; everything else stays in its wheel.
_NEEDED = ("torch/version.py", "torch/include/")
_LIBRARIES = {f"torch/lib/lib{name}.so" for name in ("c10", "torch", "torch_cpu", "torch_python")}


def run(command: Sequence[str | Path], **settings: str) -> None:
    """Run a command with some environment variables set; raise CalledProcessError if it fails."""
    print("+", *command, flush=True)
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT, env={**os.environ, **settings})


def unpacked_torch(version: str) -> Torch:
    """Return a torch of this version below build/torches, downloaded the first time."""
    folder = ROOT / "build" / "torches" / version
    if not folder.is_dir():
        scratch = folder.with_suffix(".new")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", scratch]
        run([*command, "--only-binary=:all:", f"torch=={version}"])
        (path,) = scratch.glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            wanted = [n for n in names if n.startswith(_NEEDED) or n in _LIBRARIES]
            wheel.extractall(scratch, wanted)
        path.unlink()
        scratch.rename(folder)
    return torch_in(folder / "torch")


def version_of(python: Path) -> str:
    """Return the minor version of an interpreter, as "3.11"; empty if it does not work."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def find_python(version: str) -> Path | None:
    """Return an interpreter of this minor version, of PATH or pyenv, if there is one."""
    candidates = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if named := shutil.which(f"python{version}"):
        candidates.insert(0, Path(named))
    return next((python for python in candidates if version_of(python) == version), None)


def build_environment(python: Path) -> Path:
    """Return the Python of an environment with what builds need, for this interpreter."""
    folder = ROOT / "build" / f"wheel-python{version_of(python)}"
    own = folder / "bin" / "python"
    if not own.exists():
        run([python, "-m", "venv", "--clear", folder])
        run(
            [own, "-m", "pip", "install", "--quiet", "setuptools==82.0.1", "wheel", "ninja==1.13.2"]
        )
    return own


def make_wheel(python: Path, sources: Path, torches: Sequence[Torch], out: Path) -> Path:
    """Build a wheel for this Python and these torches, and return its path in `out`.

    Args:
        python: the interpreter, of an environment with what builds need.
        sources: folder of the unpacked source distribution.
        torches: each gets an extension.
        out: folder.

    Raises:
        subprocess.CalledProcessError: compiling failed, or auditwheel found something too new.
    """
    raw = ROOT / "build" / "wheels-raw"
    shutil.rmtree(raw, ignore_errors=True)
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", raw]
    run(
        [python, "-m", "pip", "wheel", *options, sources],
        DLSLIME_BUILD_TORCH=":".join(str(torch.folder) for torch in torches),
        DLSLIME_BUILD_GLIBC="2.28",
        # ccache: messages name sources by relative paths, whichever folder the wheel is built in.
        CCACHE_BASEDIR=str(ROOT),
        CCACHE_NOHASHDIR="1",
        PATH=f"{python.parent}:{os.environ['PATH']}",
    )
    (wheel,) = raw.glob("*.whl")
    # torch's libraries are in memory when ours are loaded; a copy of them would be another torch.
    others = [f"--exclude={name}" for name in ("libtorch*.so*", "libc10*.so*")]
    command = [sys.executable, "-m", "auditwheel", "repair", "--strip", "--only-plat"]
    patchelf = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run([*command, "--plat", PLATFORM, "--wheel-dir", out, *others, wheel], PATH=patchelf)
    tag = wheel.name.split("-")[2]
    (path,) = out.glob(f"*-{tag}-*.whl")
    return path


def make_sdist(out: Path) -> Path:
    """Write the source distribution into `out`; return the folder that it was unpacked into."""
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, "."])
    (path,) = out.glob("*.tar.gz")
    unpacked = ROOT / "build" / "sdist"
    shutil.rmtree(unpacked / path.name.removesuffix(".tar.gz"), ignore_errors=True)
    shutil.unpack_archive(path, unpacked, filter="data")
    return unpacked / path.name.removesuffix(".tar.gz")


def arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", action="append", help="version, or folder of the package torch")
    parser.add_argument("--python", action="append", help="version, or path; default: 3.11 to 3.14")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    return parser.parse_args()


def main() -> int:
    """Make the wheels and the source distribution, and say which Pythons were not found."""
    options = arguments()
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    torches = [
        torch_in(Path(name)) if "/" in name else unpacked_torch(name)
        for name in options.torch or TORCHES
    ]
    sources = make_sdist(out)
    for version in options.python or PYTHONS:
        python = Path(version) if "/" in version else find_python(version)
        if python is None:
            print(f"no wheel for Python {version}: no interpreter is found")
        else:
            print(make_wheel(build_environment(python), sources, torches, out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
