"""The information that an endpoint gives to its peer: a dict for JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import islice
from typing import Any

from dlslime_backend._untrusted import decode_base64, fields, shown

VERSION = 2
_MOST_ADDRESS = 64 << 10  # bytes


class Info(dict[str, Any]):
    """A callable dict: `endpoint_info` is a property in 0.0.1.post, and a method in later versions.

    pickle and json treat an instance as a plain dict.
    """

    def __call__(self) -> dict[str, Any]:
        """Return the content as a plain dict."""
        return dict(self)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return dict, (dict(self),)


class RegionsInfo(Info):
    """An `Info` for `mr_info`: today's method returns None without registered regions."""

    def __call__(self) -> dict[str, Any] | None:  # type: ignore[override]
        """Return the content as a plain dict, or None if the dict is empty."""
        return dict(self) or None


def encoded(data: bytes) -> str:
    """Return bytes as a base64 text, for JSON."""
    return base64.b64encode(data).decode()


def parts_of(info: object) -> tuple[bytes, object]:
    """Return the address and the regions of a peer's `endpoint_info`; the info is not trusted.

    Raises:
        ValueError: the info is malformed, or of another library or version.
    """
    version = info.get("dlslime_backend") if isinstance(info, dict) else None
    if version != VERSION:
        keys = f"keys {shown(list(islice(info, 5)))}" if isinstance(info, dict) else shown(info)
        raise ValueError(
            f"it is not of dlslime_backend's version {VERSION} "
            f"(its version is {shown(version)}, {keys}): both ends must use version {VERSION}"
        )
    found = fields(info, "it", ["address", "mr_info"])
    return decode_base64(found["address"], "address", _MOST_ADDRESS), found["mr_info"]
