"""Version 0.0.2, pinned by LMDeploy: integers of the caller are the keys of regions.

The calls are those of today's generation. An assignment names regions by the registered integers,
such as `data_ptr()` or a hash of 64 bits; a key that is registered again means the new memory.
`mr_info` has entries under the decimal texts of the integers. (In 0.0.2 a registration returned 0;
here the registration returns the handle, as today's does.)
"""

from __future__ import annotations

import operator
import re
from typing import Any, TypeAlias

Key: TypeAlias = int | str

_NAME_OF_INTEGER = re.compile("mr_(-?[0-9]{1,40})", re.ASCII)


def name_of(key: Key) -> str:
    """Return the name of a key: "mr_k" for an integer k, as in today's generation."""
    return key if isinstance(key, str) else f"mr_{operator.index(key)}"


def key_of(name: str) -> Key:
    """Return the key of a name: the integer k for "mr_k", else the name."""
    found = _NAME_OF_INTEGER.fullmatch(name)
    return int(found[1]) if found else name


def with_integers(entries: dict[str, Any]) -> dict[str, Any]:
    """Return `mr_info` with further entries under the decimal texts of integer keys."""
    integers = {
        str(entry["mr_key"]): entry
        for entry in entries.values()
        if not isinstance(entry["mr_key"], str)
    }
    return {**integers, **entries}
