"""Loads the extension module, or raises an error with the reason."""

import atexit
import functools
import importlib
from types import ModuleType

import torch


def torch_minor(version: str = torch.__version__) -> tuple[int, int]:
    """Return major and minor version as integers: (2, 13) for "2.13.0+cpu"."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


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


@functools.cache
def extension() -> ModuleType:
    """Load `dlslime_backend._C` if necessary, and return the module.

    Raises:
        ImportError: the module was built for another minor version of torch. Backends are C++
            subclasses, and the layout of their base changes with every minor version: the module
            would crash or call wrong functions.
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
