"""Loads the extension module, or says why it can't be used."""

import functools
import importlib
from types import ModuleType

import torch


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


@functools.cache
def extension() -> ModuleType:
    """Return `dlslime_backend._C`.

    Raises:
        ImportError: it was built for another torch minor. Backends are C++ subclasses, whose layout
            changes with every minor: used all the same, it would crash or call wrong functions.
    """
    from dlslime_backend._build import TORCH_VERSION

    if _minor(TORCH_VERSION) != _minor(torch.__version__):
        raise ImportError(
            f"dlslime_backend was built for torch {TORCH_VERSION}, but torch {torch.__version__} "
            "is installed, and a build belongs to one torch minor. Rebuild it here: "
            "pip install --no-build-isolation --force-reinstall --no-deps dlslime-backend"
        )
    return importlib.import_module("dlslime_backend._C")
