"""Loads the extension module, or raises an error with the reason."""

import atexit
import functools
import importlib
from pathlib import Path
from types import ModuleType

import torch

# The engine, and below it a folder with an extension module for each minor version of torch; the
# package's __init__ puts that of the imported torch on the path.
LIBRARIES = Path(__file__).parent / "lib"


def torch_minor(version: str = torch.__version__) -> tuple[int, int]:
    """Return major and minor version as integers: (2, 13) for "2.13.0+cpu"."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def built_for() -> list[tuple[int, int]]:
    """Return the minor versions of torch that have an extension module, oldest first."""
    names = [path.name.split("_") for path in LIBRARIES.glob("torch_*_*")]
    return sorted((int(major), int(minor)) for _, major, minor in names)


class _Last:
    """Calls `begin_python_end` of the extension after all `atexit` hooks of the program.

    The order of registration does not matter: Python drops all hooks and their arguments after the
    last hook has run, before the interpreter begins to end. An instance is the argument of a hook,
    so `__del__` runs at that moment.
    """

    def __init__(self, module: ModuleType) -> None:
        self._begin_end = module.begin_python_end

    def __del__(self) -> None:
        self._begin_end()


def _nothing(_last: _Last) -> None:
    pass


def _require_build() -> None:
    known = built_for()
    if not known:
        raise ImportError(
            f"dlslime_backend: nothing is compiled in {LIBRARIES}: this is a source tree. Install "
            "a wheel, or compile here: pip install --no-build-isolation ."
        )
    if torch_minor() not in known:
        names = ", ".join(f"{major}.{minor}" for major, minor in known)
        raise ImportError(
            f"dlslime_backend was built for torch {names}, but torch {torch.__version__} is "
            "installed, and an extension module belongs to one torch minor. Install one of these "
            "versions of torch, or a dlslime-backend for this torch: pip install "
            "--no-build-isolation --force-reinstall --no-deps dlslime-backend"
        )


@functools.cache
def extension() -> ModuleType:
    """Load `dlslime_backend._C` if necessary, and return the module.

    Raises:
        ImportError: there is no module for this minor version of torch. Backends are C++
            subclasses, and the layout of their base changes with every minor version: the module
            would crash or call wrong functions.
    """
    _require_build()
    module = importlib.import_module("dlslime_backend._C")
    atexit.register(_nothing, _Last(module))
    return module
