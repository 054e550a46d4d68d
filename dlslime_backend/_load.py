"""Loads the extension module, or says why it can't be used."""

import atexit
import functools
import importlib
from types import ModuleType

import torch


def torch_minor(version: str = torch.__version__) -> tuple[int, int]:
    """Return (2, 13) for "2.13.0+cpu"."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


class _Last:
    """Runs what is to come after all hooks of the program, whenever they were registered.

    When the last hook has run, and before the interpreter begins to end, Python lets go of the
    hooks and of their arguments: this is one.
    """

    def __init__(self, module: ModuleType) -> None:
        self._begin_end = module.begin_python_end

    def __del__(self) -> None:
        self._begin_end()


def _nothing(_last: _Last) -> None:
    pass


@functools.cache
def extension() -> ModuleType:
    """Return `dlslime_backend._C`.

    Raises:
        ImportError: it was built for another torch minor. Backends are C++ subclasses, whose layout
            changes with every minor: used all the same, it would crash or call wrong functions.
    """
    from dlslime_backend._build import TORCH_VERSION

    if torch_minor(TORCH_VERSION) != torch_minor():
        raise ImportError(
            f"dlslime_backend was built for torch {TORCH_VERSION}, but torch {torch.__version__} "
            "is installed, and a build belongs to one torch minor. Rebuild it here: "
            "pip install --no-build-isolation --force-reinstall --no-deps dlslime-backend"
        )
    module = importlib.import_module("dlslime_backend._C")
    atexit.register(_nothing, _Last(module))
    return module
