"""Environment variables of the original, translated to the variables of dlslime."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, MutableMapping

_PREFIX = "SLIME_"
_LOG_LEVELS = {"0": "warn", "1": "info", "2": "debug"}
_MOST_QUEUE_PAIRS = 8
_logger = logging.getLogger("dlslime")


def _number(value: str) -> str | None:
    return value if int(value) >= 0 else None  # -1: the best, also dlslime's default


def _queue_pairs(value: str) -> str:
    return str(min(int(value), _MOST_QUEUE_PAIRS))


# By the original's variable: dlslime's variable and the translation of the value; None keeps the
# default.
_MEANINGS: dict[str, tuple[str, Callable[[str], str | None]]] = {
    "SLIME_VISIBLE_DEVICES": ("DLSLIME_NICS", str),
    "SLIME_GID_INDEX": ("DLSLIME_GID_INDEX", _number),
    "SLIME_SERVICE_LEVEL": ("DLSLIME_IB_SL", _number),
    "SLIME_QP_NUM": ("DLSLIME_QPS_PER_NIC", _queue_pairs),
    "SLIME_LOG_LEVEL": ("DLSLIME_LOG", _LOG_LEVELS.get),
}


def take_over(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set dlslime's variables from the original's, where dlslime's are not set.

    One line in the log lists the original's variables without a translation. An engine that already
    exists has read its variables, and does not read them again.

    Raises:
        ValueError: the value of a numeric variable is not a number.
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
