"""Names of backends; each name means dlslime, which chooses the route to a peer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from dlslime_backend.compat.nixl import _bindings as b

NAMES = ["DLSLIME", "UCX", "LIBFABRIC", "UCCL", "Mooncake"]
_logger = logging.getLogger("dlslime.nixl")


class Backends:
    """The part of an agent for backends: the names asked for."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.backends: dict[str, int] = {}
        for backend in wanted:
            if backend in NAMES:
                self.create_backend(backend)
            else:
                _logger.warning("dlslime is no %s: this backend is left out", backend)

    def get_plugin_list(self) -> list[str]:
        """Return the names that `create_backend` takes."""
        return list(NAMES)

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """Return the kinds of memory that a backend can register."""
        return ["DRAM_SEG", "VRAM_SEG"] if backend in NAMES else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Return an empty dict: dlslime is configured by environment variables."""
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Return the kinds of memory that a created backend can register."""
        return ["DRAM_SEG", "VRAM_SEG"] if backend in self.backends else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """Return an empty dict: dlslime is configured by environment variables."""
        return {}

    def create_backend(self, backend: str, initParams: dict[str, str] | None = None) -> None:  # noqa: N803
        """Record a name that means dlslime; `initParams` are ignored.

        Raises:
            nixlNotFoundError: the name does not mean dlslime.
            nixlInvalidParamError: the backend exists already.
        """
        if backend not in NAMES:
            raise b.nixlNotFoundError(f"dlslime is no {backend}; it is {', '.join(NAMES)}")
        if backend in self.backends:
            raise b.nixlInvalidParamError(f"the backend {backend} exists already")
        self.backends[backend] = len(self.backends) + 1

    def _check(self, backends: Sequence[str]) -> None:
        for backend in backends:
            self.backends[backend]  # raises KeyError, as NIXL does
