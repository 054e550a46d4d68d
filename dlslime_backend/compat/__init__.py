"""Modules that speak the Python APIs of other transfer libraries, on top of dlslime's own.

Programs that can change an import write `import dlslime_backend.compat.dlslime as dlslime`. For
those that can't, `provide("dlslime")`, or the variable DLSLIME_PROVIDE=dlslime in the environment
of all their processes, makes `import dlslime` find it: unless the library itself is installed,
which always goes first, and is never hidden.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# Modules of each library, and what stands for them.
_PROVIDED = {
    "dlslime": {"dlslime": "dlslime_backend.compat.dlslime"},
    "nixl": {
        "nixl": "dlslime_backend.compat.nixl",
        "nixl._api": "dlslime_backend.compat.nixl._api",
        "nixl._bindings": "dlslime_backend.compat.nixl._bindings",
    },
}


class _Provider:
    """Finds, after everybody else, the modules that were asked for."""

    def __init__(self) -> None:
        self.libraries: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        library, _, inside = name.partition(".")
        if library not in self.libraries or name not in _PROVIDED[library]:
            return None
        package = sys.modules.get(library)
        if inside and getattr(package, "__loader__", None) is not self:
            return None  # the library itself is installed
        return ModuleSpec(
            name,
            self,  # type: ignore[arg-type]
            origin=_PROVIDED[library][name],
            is_package=len(_PROVIDED[library]) > 1 and not inside,
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See importlib.abc.Loader: a module of the other name, with the same contents."""
        module = ModuleType(spec.name)
        source = importlib.import_module(str(spec.origin))
        module.__dict__.update(
            (key, value) for key, value in vars(source).items() if not key.startswith("__")
        )
        module.__doc__ = source.__doc__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """See importlib.abc.Loader."""


_provider = _Provider()


def provide(name: str) -> None:
    """Make `import name` find dlslime's module of that API, unless another one is installed.

    Raises:
        ValueError: there is no such module.
    """
    if name not in _PROVIDED:
        raise ValueError(f"dlslime: cannot provide {name!r}; there are: {', '.join(_PROVIDED)}")
    _provider.libraries.add(name)
    if _provider not in sys.meta_path:
        sys.meta_path.append(_provider)


def provide_by_environment() -> None:
    """Do what DLSLIME_PROVIDE asks for: names, separated by commas.

    Raises:
        ValueError: one of them is unknown.
    """
    for name in filter(None, os.environ.get("DLSLIME_PROVIDE", "").split(",")):
        provide(name.strip())
