"""Makes `import dlslime`, `import slime` and `import nixl` find modules of dlslime_backend.

If DLSLIME_PROVIDE is set, dlslime_backend.pth imports the module at Python's start, so that
programs may import the names before torch. The module must not import torch, and must never fail.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_COMPAT = "dlslime_backend.compat"
# By library: the names of its modules, and the modules of dlslime_backend behind the names.
PROVIDED = {
    "dlslime": {
        "dlslime": f"{_COMPAT}.dlslime",
        "dlslime._slime_c": f"{_COMPAT}.dlslime._slime_c",
        "dlslime._slime_torch": f"{_COMPAT}.dlslime._slime_torch",
    },
    "nixl": {
        "nixl": f"{_COMPAT}.nixl",
        "nixl._api": f"{_COMPAT}.nixl._api",
        "nixl._bindings": f"{_COMPAT}.nixl._bindings",
    },
    "slime": {"slime": f"{_COMPAT}.dlslime"},
}


class _Provider:
    """A meta path finder, after all others, for the modules of the provided libraries."""

    def __init__(self) -> None:
        self.libraries: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of a provided library; see importlib.abc.MetaPathFinder."""
        library, _, inside = name.partition(".")
        if library not in self.libraries or name not in PROVIDED[library]:
            return None
        package = sys.modules.get(library)
        if inside and getattr(package, "__loader__", None) is not self:
            return None  # the library itself is installed
        return ModuleSpec(
            name,
            self,  # type: ignore[arg-type]
            origin=PROVIDED[library][name],
            is_package=len(PROVIDED[library]) > 1 and not inside,
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module with the provided name and the contents of dlslime_backend's module."""
        module = ModuleType(spec.name)
        source = importlib.import_module(str(spec.origin))
        module.__dict__.update(
            (key, value) for key, value in vars(source).items() if not key.startswith("__")
        )
        module.__doc__ = source.__doc__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` has filled the module."""


_provider = _Provider()


def provide(name: str) -> None:
    """Make `import name` find dlslime's version of a library, unless the library is installed.

    Args:
        name: a key of `PROVIDED`.

    Raises:
        ValueError: dlslime has no version of the library.
    """
    if name not in PROVIDED:
        raise ValueError(f"dlslime: cannot provide {name!r}; there are: {', '.join(PROVIDED)}")
    _provider.libraries.add(name)
    if _provider not in sys.meta_path:
        sys.meta_path.append(_provider)


def provide_by_environment() -> None:
    """Provide the libraries in DLSLIME_PROVIDE, names separated by commas.

    Raises:
        ValueError: a name is unknown; all known names are provided.
    """
    unknown = []
    for name in filter(None, map(str.strip, os.environ.get("DLSLIME_PROVIDE", "").split(","))):
        if name in PROVIDED:
            provide(name)
        else:
            unknown.append(name)
    for name in unknown:
        provide(name)


def begin() -> None:
    """Provide the libraries in DLSLIME_PROVIDE; called when Python starts.

    Errors are dropped: `import torch` warns of them.
    """
    try:
        provide_by_environment()
    except ValueError:
        return
