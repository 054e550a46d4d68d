"""Makes `import dlslime`, `import slime` and `import nixl` find dlslime_backend's modules.

Imported when Python starts, by dlslime_backend.pth, where DLSLIME_PROVIDE is set: so that programs
may import these names before torch. Nothing here imports torch, and nothing may fail.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_COMPAT = "dlslime_backend.compat"
# Modules of each library, and what stands for them.
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
    """Finds, after all other finders, the modules that were asked for."""

    def __init__(self) -> None:
        self.libraries: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
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
    if name not in PROVIDED:
        raise ValueError(f"dlslime: cannot provide {name!r}; there are: {', '.join(PROVIDED)}")
    _provider.libraries.add(name)
    if _provider not in sys.meta_path:
        sys.meta_path.append(_provider)


def provide_by_environment() -> None:
    """Do what DLSLIME_PROVIDE asks for: names, separated by commas.

    Raises:
        ValueError: one of them is unknown; the others are provided.
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
    """Do the same when Python starts: what is wrong is told when torch is imported."""
    try:
        provide_by_environment()
    except ValueError:
        return
