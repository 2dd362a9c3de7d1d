"""Where the worker's programs log to: standard error, since standard output is for results.

Called by programs (the trainer, commands that run its code) and never on import: in a loop of
one's own, structlog is configured by whoever owns the loop.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(*, first: bool = True) -> None:
    """Log from INFO on; ranks that do not lead tell only errors, since rank 0 says the rest."""
    level = logging.INFO if first else logging.ERROR
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
