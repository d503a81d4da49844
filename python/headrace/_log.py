# SPDX-License-Identifier: Apache-2.0
"""The logger "headrace". The extension imports this with the first record: logging is slow to import."""

from __future__ import annotations

import logging

logger = logging.getLogger("headrace")

_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)


def log_record(level: int, message: str) -> None:
    """A record of the library. ``level``: 0 info, 1 warning, 2 error."""
    logger.log(_LEVELS[level], "%s", message)


def log_callback_error(transfer: object, error: BaseException) -> None:
    """A callback raised; nobody is there to catch it."""
    logger.error("exception calling callback for %r", transfer, exc_info=error)
