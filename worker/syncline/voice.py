"""What a replica says once, however many ranks it has."""

from __future__ import annotations

import logging

import structlog
from structlog.typing import FilteringBoundLogger

from syncline_proto.settings import RunSettings


def voice(rank: int) -> FilteringBoundLogger:
    """The logger for what all ranks know alike: rank 0's; that of the others is silent."""
    if rank == 0:
        return structlog.get_logger()
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    return structlog.wrap_logger(None, wrapper_class=silent)


def of_waiting(revision: int, settings: RunSettings) -> dict[str, str]:
    """Why a round that was pushed to, from ``revision``, is open still, and how long it will be.

    A replica does not know who else has pushed, so this names all that the round may wait for.
    """
    least, wished = settings.min_replicas, max(settings.min_replicas, settings.replicas)
    so = "the round closes without them at its deadline (timeouts.round_deadline)"
    if revision == 0 and wished > 1:
        name = "min_replicas" if wished == least else "expected_replicas"
        why = f"the first round waits for {name} {wished}, and not all of them have pushed yet"
        if wished == least:
            return {"why": why, "so": "no round closes with fewer"}
    else:
        why = "replicas that take part have not pushed yet"
        why += f", or they are fewer than min_replicas {least}" if least > 1 else ""
    return {"why": why, "so": so + (f", with min_replicas {least} at least" if least > 1 else "")}
