"""The original's plug-in of torch.distributed: importing it makes the backend "dlslime" known."""

from dlslime_backend import _hook

_hook.register()
