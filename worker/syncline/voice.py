"""What a replica says once, however many ranks it has."""

from __future__ import annotations

import logging

import structlog
from structlog.typing import FilteringBoundLogger


def voice(rank: int) -> FilteringBoundLogger:
    """The logger for what all ranks know alike: rank 0's; that of the others is silent."""
    if rank == 0:
        return structlog.get_logger()
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    return structlog.wrap_logger(None, wrapper_class=silent)
