"""The original's plug-in of torch.distributed; an import registers the backend "dlslime"."""

from dlslime_backend import _hook

_hook.register()
