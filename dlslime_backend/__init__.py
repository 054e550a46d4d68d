"""dlslime: a torch.distributed backend for fast point-to-point transfers.

`torch.distributed.init_process_group(backend="dlslime")` works without importing this package; it
is imported for its own functions. torch imports it too, at the end of its own import, in programs
that never ask for dlslime: so everything is loaded at first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (first: its libraries must be loaded before the extension's)

from dlslime_backend import _hook

if TYPE_CHECKING:
    from dlslime_backend._C import Options as Options
    from dlslime_backend.report import explain as explain
    from dlslime_backend.report import stats as stats

__all__ = ["Options", "explain", "stats"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Options":
        from dlslime_backend._load import extension

        return extension().Options
    if name in __all__:
        return getattr(importlib.import_module("dlslime_backend.report"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_hook.autoload()
