"""Builds dlslime_backend._C: the engine (csrc/) as a static library, then the torch extension.

torch is taken from the environment of the running Python: `pip install --no-build-isolation .`
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SUPPORTED_MINORS = range(11, 16)  # torch 2.x
# DLSLIME_BUILD_OPTIMIZE: the level of optimising, for builds that are only tried out.
# DLSLIME_BUILD_UNITY: how many sources of torch_ext/ are compiled as one; 1: each apart.
TOGETHER = int(os.environ.get("DLSLIME_BUILD_UNITY", "6"))
OPTIMIZE = f"-O{os.environ.get('DLSLIME_BUILD_OPTIMIZE', '3')}"
ENGINE_FLAGS = ["-std=c++20", OPTIMIZE, "-g1", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow"]

try:
    import torch
    from torch.utils.cpp_extension import (
        BuildExtension,
        CppExtension,
        include_paths,
        is_ninja_available,
    )
except ImportError as error:
    sys.exit(
        f"dlslime-backend: cannot build: torch is not importable in {sys.executable} ({error}). "
        "Install torch 2.11 to 2.15 there first, then run: pip install --no-build-isolation ."
    )


def require_toolchain() -> None:
    """Exit with a clear text if torch is not supported or ninja is missing."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if major != 2 or minor not in SUPPORTED_MINORS:
        sys.exit(
            f"dlslime-backend: cannot build for torch {torch.__version__}: supported are "
            f"2.{SUPPORTED_MINORS[0]} to 2.{SUPPORTED_MINORS[-1]}. Install one of these first."
        )
    if not is_ninja_available():
        sys.exit("dlslime-backend: cannot build: ninja is not found. Install it: pip install ninja")


def compiler() -> str:
    """Return the command of the C++ compiler, with ccache if installed, as torch does by itself."""
    command = os.environ.get("CXX", "c++")
    return f"ccache {command}" if shutil.which("ccache") else command


def have_verbs() -> bool:
    """Return whether the compiler finds infiniband/verbs.h; the library is opened at run time.

    With DLSLIME_BUILD_RDMA=off the result is False, as on a machine without the header.
    """
    if os.environ.get("DLSLIME_BUILD_RDMA") == "off":
        return False
    return (
        subprocess.run(
            [*compiler().split(), "-x", "c++", "-E", "-include", "infiniband/verbs.h", os.devnull],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )


def build_engine(folder: Path) -> Path:
    """Compile csrc/ into a static library below `folder`, and return the path of the library.

    A separate ninja file keeps torch's headers and flags out of the engine, so a compiler cache has
    the objects for every version of torch.

    Raises:
        subprocess.CalledProcessError: ninja or the compiler failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted((ROOT / "csrc").rglob("*.cpp"))
    verbs = have_verbs()
    if not verbs:
        print("dlslime-backend: infiniband/verbs.h is not found, or hidden: building without RDMA")
        sources = [source for source in sources if "rdma" not in source.parts]
    objects = [source.relative_to(ROOT).with_suffix(".o").as_posix() for source in sources]
    # On the command line, so that ninja builds everything again once the header is installed.
    have = f"-DDLSLIME_HAVE_VERBS={int(verbs)}"
    flags = " ".join([*ENGINE_FLAGS, *WARNINGS, have, f"-I{ROOT}/csrc", f"-I{ROOT}"])
    lines = [
        "ninja_required_version = 1.5",
        "rule cxx",
        f"  command = {compiler()} {flags} -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule ar",
        "  command = rm -f $out && ar crs $out $in",
        *(f"build {obj}: cxx {source}" for obj, source in zip(objects, sources, strict=True)),
        f"build libdlslime.a: ar {' '.join(objects)}",
        "",
    ]
    (folder / "build.ninja").write_text("\n".join(lines))
    subprocess.run(["ninja", "-C", str(folder)], check=True)
    return folder / "libdlslime.a"


def joined_sources(sources: list[str]) -> list[str]:
    """Write files that include up to TOGETHER sources of a folder each, and return their paths.

    To read torch's headers takes most of the time of each source. The paths are the same in all
    builds, so that a compiler cache finds the objects again.
    """
    folder = Path("build/joined")
    folder.mkdir(parents=True, exist_ok=True)
    by_folder: dict[str, list[Path]] = {}
    for source in map(Path, sorted(sources)):
        by_folder.setdefault(source.parent.name, []).append(source)
    joined = []
    for name, paths in by_folder.items():
        for first in range(0, len(paths), TOGETHER):
            lines = [f'#include "{path.as_posix()}"\n' for path in paths[first : first + TOGETHER]]
            file = folder / f"{name}_{first // TOGETHER}.cpp"
            if not file.is_file() or file.read_text() != "".join(lines):
                file.write_text("".join(lines))
            joined.append(file.as_posix())
    return joined


def write_build_facts(folder: Path) -> None:
    """Write the version of torch into _build.py, for a check before the extension is loaded."""
    package = folder / "dlslime_backend"
    package.mkdir(parents=True, exist_ok=True)
    (package / "_build.py").write_text(
        '"""Written by setup.py: the torch that the extension module was built for."""\n\n'
        f'TORCH_VERSION = "{torch.__version__}"\n'
    )


class BuildApart(build):
    """Keeps the builds for different versions of torch in separate folders."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = f"build/torch-{torch.__version__}"


class BuildPython(build_py):
    """Adds the .pth file that imports `_dlslime_provide` when Python starts."""

    def run(self) -> None:
        super().run()
        # An editable wheel contains only the files in its own folder.
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else None
        target = Path(folder or self.build_lib) / "dlslime_backend.pth"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            "import os; os.environ.get('DLSLIME_PROVIDE') and "
            "__import__('_dlslime_provide').begin()\n"
        )

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), f"{self.build_lib}/dlslime_backend.pth"]


class BuildBackend(BuildExtension):
    """Builds the engine, then the extension."""

    def build_extensions(self) -> None:
        require_toolchain()
        write_build_facts(Path(self.build_lib))
        engine = build_engine(Path(self.build_temp) / "engine")
        for extension in self.extensions:
            extension.extra_objects.append(str(engine.resolve()))
            if TOGETHER > 1:
                extension.sources = joined_sources(extension.sources)
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        """Copy for editable and in-place builds, which import modules from beside the sources."""
        super().copy_extensions_to_source()
        write_build_facts(ROOT)


setup(
    ext_modules=[
        CppExtension(
            name="dlslime_backend._C",
            sources=sorted(
                str(path.relative_to(ROOT)) for path in (ROOT / "torch_ext").rglob("*.cpp")
            ),
            include_dirs=[str(ROOT / "csrc"), str(ROOT)],
            define_macros=[("DLSLIME_TORCH_VERSION", f'"{torch.__version__}"')],
            # As system headers, torch's headers give no warnings.
            extra_compile_args=[
                *ENGINE_FLAGS,
                *WARNINGS,
                *(f"-isystem{folder}" for folder in include_paths()),
            ],
            libraries=["dl", "rt", "pthread"],
        )
    ],
    cmdclass={"build": BuildApart, "build_ext": BuildBackend, "build_py": BuildPython},
)
