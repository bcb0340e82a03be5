"""``fluid.log_helper``."""

from __future__ import annotations

import logging


def get_logger(name: str, level: int | str, fmt: str | None = None) -> logging.Logger:
    """A logger that writes to stderr in the format ``fmt`` and hands nothing on."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        if fmt:
            handler.setFormatter(logging.Formatter(fmt=fmt))
        logger.addHandler(handler)
    logger.propagate = False
    return logger
