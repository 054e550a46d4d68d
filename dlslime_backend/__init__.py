"""dlslime: a torch.distributed backend for fast point-to-point transfers.

`torch.distributed.init_process_group(backend="dlslime")` works without an import of the package:
torch finds the backend by an entry point. Programs import the package for the functions and classes
of `__all__`. torch imports the package as well, at the end of `import torch`, also in programs
without dlslime; so the modules and the extension are loaded at first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

import torch  # first: the extension needs torch's libraries loaded

from dlslime_backend import _hook

if TYPE_CHECKING:
    from dlslime_backend._C import Options as Options
    from dlslime_backend.memory import Region as Region
    from dlslime_backend.memory import RemoteRegion as RemoteRegion
    from dlslime_backend.memory import import_region as import_region
    from dlslime_backend.memory import register as register
    from dlslime_backend.one_sided import Endpoint as Endpoint
    from dlslime_backend.one_sided import Guest as Guest
    from dlslime_backend.one_sided import Hub as Hub
    from dlslime_backend.one_sided import Peer as Peer
    from dlslime_backend.one_sided import Prepared as Prepared
    from dlslime_backend.one_sided import peer as peer
    from dlslime_backend.report import explain as explain
    from dlslime_backend.report import stats as stats
    from dlslime_backend.report import write_flight_record as write_flight_record
    from dlslime_backend.transfer import Transfer as Transfer

_PLACES = {
    "memory": ["Region", "RemoteRegion", "import_region", "register"],
    "one_sided": ["Endpoint", "Guest", "Hub", "Peer", "Prepared", "peer"],
    "report": ["explain", "stats", "write_flight_record"],
    "transfer": ["Transfer"],
}
__all__ = ["Options", *(name for names in _PLACES.values() for name in names)]  # noqa: PLE0604
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Options":
        from dlslime_backend._load import extension

        return extension().Options
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"dlslime_backend.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Here `dlslime_backend._C` is found: wheels have an extension module for each minor torch.
__path__.append(f"{__path__[0]}/lib/torch_{'_'.join(torch.__version__.split('.')[:2])}")
_hook.autoload()
