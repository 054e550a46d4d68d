"""Builds dlslime_backend: the engine (csrc/) as a library, and the extension for installed torch.

torch is taken from the environment of the running Python: `pip install --no-build-isolation .`
What is compiled, and how, stands in package/native.py.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip runs this file without its folder on the path

from package import cpp_face, native  # noqa: E402
from package.torches import TorchError, torches  # noqa: E402

# Everything that is made at build time lies in this folder of the package.
MADE = Path("dlslime_backend", "lib")


def build_folder() -> Path:
    """Return the folder of builds for these versions of torch and Python; it stays between builds.

    Always as deep in the tree: a compiler cache finds the objects of a clone elsewhere again.
    """
    try:
        versions = "_".join(torch.version for torch in torches())
    except TorchError:
        versions = "none"  # build_ext says what is wrong; a source distribution needs no torch
    old = f"-glibc{native.OLD_GLIBC}" if native.OLD_GLIBC else ""
    return Path("build", f"torch-{versions}-{sys.implementation.cache_tag}{old}")


class BuildApart(build):
    """Keeps the builds for different versions of torch and of Python in separate folders."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = str(build_folder())


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


class BuildNative(build_ext):
    """Builds engine and extensions, and copies headers, into dlslime_backend/lib."""

    made: list[Path] = []  # relative to MADE

    def build_extensions(self) -> None:
        try:
            # Not build_temp: for editable builds it is a new folder each time.
            folder = ROOT / build_folder() / "native"
            libraries = native.build(folder, torches())
        except (TorchError, native.BuildError) as error:
            sys.exit(f"dlslime-backend: {error}")
        target = Path(self.build_lib) / MADE
        shutil.rmtree(target, ignore_errors=True)  # extensions for other torches
        for path in libraries:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / path, target / path)
        self.made = [*libraries, *cpp_face.install(target)]

    def copy_extensions_to_source(self) -> None:
        """Copy for editable and in-place builds, which import modules from beside the sources."""
        shutil.rmtree(ROOT / MADE, ignore_errors=True)
        shutil.copytree(Path(self.build_lib) / MADE, ROOT / MADE)

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / MADE / path) for path in self.made]

    def get_output_mapping(self) -> dict[str, str]:
        if not self.inplace:
            return {}
        pairs = zip(self.get_outputs(), self.made, strict=True)
        return {output: str(ROOT / MADE / path) for output, path in pairs}


setup(
    # Stands for all that is built, and says that the wheel is for one platform and Python.
    ext_modules=[Extension("dlslime_backend._C", sources=[])],
    cmdclass={"build": BuildApart, "build_ext": BuildNative, "build_py": BuildPython},
)
