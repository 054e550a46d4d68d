"""The commands of `python -m dlslime_backend`: see `python -m dlslime_backend --help`."""
