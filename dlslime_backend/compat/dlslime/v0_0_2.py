"""Version 0.0.2, which LMDeploy pins: the caller's own integers are the keys of regions.

Its calls are those of today's generation. An assignment names regions by what the caller has
registered, be it `data_ptr()` or a hash of 64 bits, and a key that is registered again means the
new memory. `mr_info` has the integer's decimal text. (Registering returned 0 there; here it
returns the handle, as it does today.)
"""

from __future__ import annotations

import operator
import re
from typing import Any, TypeAlias

Key: TypeAlias = int | str

_NAME_OF_INTEGER = re.compile("mr_(-?[0-9]{1,40})", re.ASCII)


def name_of(key: Key) -> str:
    """Return the name that a key means: an integer k is the name "mr_k", as it is today."""
    return key if isinstance(key, str) else f"mr_{operator.index(key)}"


def key_of(name: str) -> Key:
    """Return the integer of which this is the name, or the name."""
    found = _NAME_OF_INTEGER.fullmatch(name)
    return int(found[1]) if found else name


def with_integers(entries: dict[str, Any]) -> dict[str, Any]:
    """Return `mr_info` with the entries of integers under their decimal texts as well."""
    integers = {
        str(entry["mr_key"]): entry
        for entry in entries.values()
        if not isinstance(entry["mr_key"], str)
    }
    return {**integers, **entries}
