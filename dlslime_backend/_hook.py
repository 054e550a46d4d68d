"""Entry points that make the name "dlslime" known to torch.

torch imports the module at the end of every `import torch`, also in programs without dlslime: so
the module does not load the extension, and no call may fail.
"""

import os
import warnings
from typing import Any

NAME = "dlslime"
DEVICES = ["cpu", "cuda"]


def _create(options: Any, backend_options: Any) -> Any:
    from dlslime_backend._backend import create

    return create(options, backend_options)


def _make_group(
    store: Any, rank: int, world_size: int, timeout: Any, device: Any, **options: object
) -> Any:
    from dlslime_backend._backend import make_group

    return make_group(store, rank, world_size, timeout, device, **options)


def _register_factory() -> None:
    """Register with `torch.distributed._dist2`, if torch has the module.

    `_dist2` has a table of backends of its own.
    """
    try:
        from torch.distributed import _dist2
    except ImportError:
        return
    if NAME not in _dist2._BACKENDS:
        _dist2.register_backend(NAME, _make_group)


def register() -> None:
    """Register the backend with torch.distributed; does nothing the second time."""
    from torch.distributed.distributed_c10d import Backend

    if dict.__contains__(Backend._plugins, NAME.upper()):
        return
    Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
    if not hasattr(Backend, "_ensure_backend_registered"):
        from dlslime_backend._lazy import put_first

        put_first(NAME)


def autoload() -> None:
    """Announce the backend; torch calls the entry point (group `torch.backends`) after its import.

    Never raises. torch 2.14 and later find the name by the group `torch.distributed.backends`;
    there the function registers with `torch.distributed._dist2` only.
    """
    try:
        if "DLSLIME_PROVIDE" in os.environ:
            from dlslime_backend.compat import provide_by_environment

            try:
                provide_by_environment()
            except ValueError as error:
                warnings.warn(str(error), stacklevel=2)
        import torch.distributed as dist

        if not dist.is_available():
            return
        _register_factory()
        from torch.distributed.distributed_c10d import Backend

        if hasattr(Backend, "_ensure_backend_registered"):
            # torch 2.14 and later call `register` by the group `torch.distributed.backends` at
            # first use.
            return
        from dlslime_backend._lazy import announce

        announce(NAME, DEVICES, register)
    except Exception:  # noqa: BLE001 - an error would break `import torch` in all programs
        return
