"""The original's environment variables: ours of the same meaning are set by them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, MutableMapping

_PREFIX = "SLIME_"
_LOG_LEVELS = {"0": "warn", "1": "info", "2": "debug"}
_MOST_QUEUE_PAIRS = 8
_logger = logging.getLogger("dlslime")


def _number(value: str) -> str | None:
    return value if int(value) >= 0 else None  # -1: the best one, as by default


def _queue_pairs(value: str) -> str:
    return str(min(int(value), _MOST_QUEUE_PAIRS))


# Ours, and its value for theirs; None leaves the default.
_MEANINGS: dict[str, tuple[str, Callable[[str], str | None]]] = {
    "SLIME_VISIBLE_DEVICES": ("DLSLIME_NICS", str),
    "SLIME_GID_INDEX": ("DLSLIME_GID_INDEX", _number),
    "SLIME_SERVICE_LEVEL": ("DLSLIME_IB_SL", _number),
    "SLIME_QP_NUM": ("DLSLIME_QPS_PER_NIC", _queue_pairs),
    "SLIME_LOG_LEVEL": ("DLSLIME_LOG", _LOG_LEVELS.get),
}


def take_over(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set ours where theirs is set and ours is not; name those without a meaning in one line.

    What has been read before, by a group that exists, is not read again.

    Raises:
        ValueError: a value is not a number where there has to be one.
    """
    for theirs, (ours, value_of) in _MEANINGS.items():
        if theirs in environment and ours not in environment:
            try:
                value = value_of(environment[theirs])
            except ValueError:
                raise ValueError(
                    f"dlslime: {theirs}={environment[theirs]!r} is not a number"
                ) from None
            if value is not None:
                environment[ours] = value
    others = sorted(
        name for name in environment if name.startswith(_PREFIX) and name not in _MEANINGS
    )
    if others:
        _logger.warning(
            "%s: these variables of the original DLSlime mean nothing to dlslime_backend",
            ", ".join(others),
        )
