"""Compiles the engine into libdlslime.so, and one extension module for each version of torch.

One ninja file has all commands. The engine is compiled once, without torch's headers and flags.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from package.torches import Torch

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
# DLSLIME_BUILD_OPTIMIZE: the level of optimising, for builds that are only tried out.
# DLSLIME_BUILD_UNITY: how many sources of torch_ext/ are compiled as one; 1: each apart.
TOGETHER = int(os.environ.get("DLSLIME_BUILD_UNITY", "6"))
OPTIMIZE = f"-O{os.environ.get('DLSLIME_BUILD_OPTIMIZE', '3')}"
# DLSLIME_BUILD_GLIBC=2.28: call only what glibc 2.28 and its age's libstdc++ have.
OLD_GLIBC = os.environ.get("DLSLIME_BUILD_GLIBC")
FLAGS = ["-std=c++20", OPTIMIZE, "-g1", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow"]
# Compiled apart from the rest of its folder: the build id changes with every change of csrc/.
ALONE = ROOT / "torch_ext" / "bind" / "same_build.cpp"


class BuildError(Exception):
    """The build can't be made here; the text says what to do."""


def version() -> str:
    """Return the version of the package, of which dlslime_backend/__init__.py is the source."""
    text = (ROOT / "dlslime_backend" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise BuildError("dlslime_backend/__init__.py has no line __version__")
    return found[1]


def build_id() -> str:
    """Return the version and a hash of the engine's sources, compared by engine and extensions."""
    every = hashlib.sha256()
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in {".h", ".cpp"}:
            every.update(f"{path.relative_to(ROOT)}\0".encode())
            every.update(path.read_bytes())
    return f"{version()}-{every.hexdigest()[:12]}"


def id_flag() -> str:
    """Return the flag for sources that know the build id, in the form that ninja wants."""
    return f"-DDLSLIME_BUILD_ID='\"{build_id()}\"'"


def compiler() -> str:
    """Return the command of the C++ compiler, with ccache if installed.

    Raises:
        BuildError: there is no compiler.
    """
    command = os.environ.get("CXX", "c++")
    if shutil.which(command.split()[0]) is None:
        raise BuildError(
            f"no C++ compiler ({command}) is found. Install one with C++20 (g++ 11 or later), or "
            "install a wheel, which needs none"
        )
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


def joined_sources(sources: Iterable[Path]) -> list[Path]:
    """Write files that include up to TOGETHER sources of a folder each, and return their paths.

    To read torch's headers takes most of the time of each source. The paths are the same in all
    builds, so that a compiler cache finds the objects again.
    """
    if TOGETHER <= 1:
        return sorted(sources)
    folder = ROOT / "build" / "joined"
    folder.mkdir(parents=True, exist_ok=True)
    by_folder: dict[str, list[Path]] = {}
    for source in sorted(sources):
        by_folder.setdefault(source.parent.name, []).append(source)
    joined = []
    for name, paths in by_folder.items():
        for first in range(0, len(paths), TOGETHER):
            text = "".join(
                f'#include "{path.relative_to(ROOT).as_posix()}"\n'
                for path in paths[first : first + TOGETHER]
            )
            file = folder / f"{name}_{first // TOGETHER}.cpp"
            if not file.is_file() or file.read_text() != text:
                file.write_text(text)
            joined.append(file)
    return joined


@dataclass
class NinjaFile:
    """A ninja file under construction, for objects and shared libraries of C++."""

    folder: Path
    lines: list[str] = field(
        default_factory=lambda: [
            "ninja_required_version = 1.5",
            f"cxx = {compiler()}",
            "rule compile",
            "  command = $cxx $flags -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            "  command = $cxx -shared -o $out $in $flags",
        ]
    )

    def compile(self, source: Path, below: str, flags: Iterable[str]) -> str:
        """Add the object of a source, in the folder `below`, and return its path."""
        target = f"{below}/{source.relative_to(ROOT).with_suffix('.o').as_posix()}"
        self.lines += [f"build {target}: compile {source}", f"  flags = {' '.join(flags)}"]
        return target

    def link(
        self, target: str, objects: Iterable[str], flags: Iterable[str], after: str = ""
    ) -> str:
        """Add a shared library of these objects, and return its path; `after` is linked, too."""
        behind = f" | {after}" if after else ""
        self.lines += [
            f"build {target}: link {' '.join(objects)}{behind}",
            f"  flags = {' '.join([*flags, *([after] if after else [])])}",
        ]
        return target

    def run(self) -> None:
        """Write the file and make everything.

        Raises:
            BuildError: ninja is missing, or a command failed, with its output on the terminal.
        """
        if shutil.which("ninja") is None:
            raise BuildError("ninja is not found. Install it: pip install ninja")
        (self.folder / "build.ninja").write_text("\n".join([*self.lines, ""]))
        done = subprocess.run(["ninja", "-C", str(self.folder)], check=False)
        if done.returncode != 0:
            raise BuildError("compiling failed; the first error is above")


LINK = ["-Wl,-z,defs", "-Wl,--no-as-needed", "-Wl,-z,relro,-z,now", "-Wl,-O1"]


def old_glibc_flags() -> list[str]:
    """Return the flags that keep newer symbols of glibc and libstdc++ out of a build."""
    if not OLD_GLIBC:
        return []
    if platform.machine() != "x86_64":
        raise BuildError(f"DLSLIME_BUILD_GLIBC is for x86-64, and this is {platform.machine()}")
    if OLD_GLIBC != "2.28":
        raise BuildError(f"DLSLIME_BUILD_GLIBC={OLD_GLIBC}: only 2.28 is known")
    return ["-include", str(HERE / "glibc_2_28.h")]


def old_glibc_objects(ninja: NinjaFile, below: str) -> list[str]:
    """Add the replacements for functions that glibc 2.28 lacks, for the library of this folder."""
    if not OLD_GLIBC:
        return []
    return [ninja.compile(HERE / "glibc_2_28.cpp", below, [*FLAGS, *WARNINGS])]


def add_engine(ninja: NinjaFile) -> str:
    """Add libdlslime.so to the file, and return its path."""
    sources = sorted((ROOT / "csrc").rglob("*.cpp"))
    verbs = have_verbs()
    if not verbs:
        print("dlslime-backend: infiniband/verbs.h is not found, or hidden: building without RDMA")
        sources = [source for source in sources if "rdma" not in source.parts]
    # On the command line, so that ninja builds everything again once the header is installed.
    have = f"-DDLSLIME_HAVE_VERBS={int(verbs)}"
    flags = [*FLAGS, *WARNINGS, *old_glibc_flags(), have, f"-I{ROOT}/csrc", f"-I{ROOT}"]
    own = {"build_id.cpp": [id_flag()]}
    objects = [ninja.compile(path, "engine", [*flags, *own.get(path.name, [])]) for path in sources]
    return ninja.link(
        "libdlslime.so",
        [*objects, *old_glibc_objects(ninja, "engine")],
        ["-Wl,-soname,libdlslime.so", *LINK, "-ldl", "-lrt", "-lpthread"],
    )


def add_extension(ninja: NinjaFile, torch: Torch, engine: str) -> str:
    """Add the extension module for a version of torch, and return its path."""
    python = sysconfig.get_paths()["include"]
    includes = [f"-isystem{folder}" for folder in [*torch.include_folders, python]]
    flags = [*FLAGS, *WARNINGS, *old_glibc_flags(), f"-I{ROOT}/csrc", f"-I{ROOT}"]
    alone = [*flags, id_flag()]
    # As system headers, torch's headers give no warnings.
    flags += ["-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=_C"]
    flags += [f"-DDLSLIME_TORCH_VERSION='\"{torch.version}\"'", *includes]
    sources = set((ROOT / "torch_ext").rglob("*.cpp")) - {ALONE}
    objects = [ninja.compile(path, torch.name, flags) for path in joined_sources(sources)]
    objects.append(ninja.compile(ALONE, torch.name, alone))
    libraries = [f"-L{torch.folder}/lib", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    # RPATH, which LD_LIBRARY_PATH does not override: the engine must be the one of this build.
    rpath = ["-Wl,--disable-new-dtags", r"-Wl,-rpath,'$$ORIGIN/..'"]
    # Python itself has the symbols of its C API.
    link = [flag for flag in LINK if flag != "-Wl,-z,defs"]
    return ninja.link(
        f"{torch.name}/_C{sysconfig.get_config_var('EXT_SUFFIX')}",
        [*objects, *old_glibc_objects(ninja, torch.name)],
        [*link, *libraries, *rpath, "-ldl", "-lrt", "-lpthread"],
        after=engine,
    )


def _symbols(library: Path, which: str) -> set[str]:
    command = ["nm", "--dynamic", "--format=just-symbols", which, str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split("@")[0] for line in listed.splitlines() if "7dlslime" in line}


def require_symbols(engine: Path, extension: Path) -> None:
    """Check that the engine shows all of its functions that an extension calls.

    The linker can't: it takes a function that is missing here for one of Python's.

    Raises:
        BuildError: functions are hidden; DLSLIME_API shows them.
    """
    missing = _symbols(extension, "--undefined-only") - _symbols(engine, "--defined-only")
    if missing:
        raise BuildError(f"{extension.parent.name} calls what libdlslime.so hides: {missing}")


def build(folder: Path, found: list[Torch]) -> list[Path]:
    """Build the engine and the extensions, and return their paths relative to `folder`.

    Raises:
        BuildError: a tool is missing, or a command failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ninja = NinjaFile(folder)
    engine = add_engine(ninja)
    made = [engine, *(add_extension(ninja, torch, engine) for torch in found)]
    ninja.run()
    for path in made[1:]:
        require_symbols(folder / engine, folder / path)
    return [Path(path) for path in made]
