"""The original's functions for its loggers."""

from __future__ import annotations

import logging

_NAME = "slime"


def get_logger(name: str | None = None) -> logging.Logger:
    """Return the logger "slime", or "slime.NAME"."""
    if not name or name == _NAME or name.startswith(f"{_NAME}."):
        return logging.getLogger(name or _NAME)
    return logging.getLogger(f"{_NAME}.{name}")


def set_log_level(
    level: int | str, *, logger_name: str = _NAME, configure_handler: bool = True
) -> logging.Logger:
    """Set the level of a logger and of the logger "dlslime"; return the former.

    Args:
        level: as in `logging`: an integer, or a name in upper or lower case.
        logger_name: name of the first logger.
        configure_handler: whether a logger without handlers gets a handler for stderr.
    """
    wanted = level.upper() if isinstance(level, str) else level
    logger = logging.getLogger(logger_name)
    for each in (logger, logging.getLogger("dlslime")):
        each.setLevel(wanted)
    if configure_handler and not logger.handlers:
        logger.addHandler(logging.StreamHandler())
    return logger
