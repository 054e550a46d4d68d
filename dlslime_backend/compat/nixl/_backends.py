"""The names of backends: each stands for dlslime, which chooses the way to a peer itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from dlslime_backend.compat.nixl import _bindings as b

NAMES = ["DLSLIME", "UCX", "LIBFABRIC", "UCCL", "Mooncake"]
_logger = logging.getLogger("dlslime.nixl")


class Backends:
    """The part of an agent that knows which names were asked for."""

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
        """Return the kinds of memory it can register."""
        return ["DRAM_SEG", "VRAM_SEG"] if backend in NAMES else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Return no parameters: dlslime's are environment variables."""
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Return the kinds of memory that the backend can register."""
        return ["DRAM_SEG", "VRAM_SEG"] if backend in self.backends else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """Return no parameters: dlslime's are environment variables."""
        return {}

    def create_backend(self, backend: str, initParams: dict[str, str] | None = None) -> None:  # noqa: N803
        """Take note of a name that stands for dlslime.

        Raises:
            nixlNotFoundError: it does not.
            nixlInvalidParamError: it is taken already.
        """
        if backend not in NAMES:
            raise b.nixlNotFoundError(f"dlslime is no {backend}; it is {', '.join(NAMES)}")
        if backend in self.backends:
            raise b.nixlInvalidParamError(f"the backend {backend} exists already")
        self.backends[backend] = len(self.backends) + 1

    def _check(self, backends: Sequence[str]) -> None:
        for backend in backends:
            self.backends[backend]  # a KeyError, as NIXL's
