"""What a replica says once, however many ranks it has."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import structlog
import torch.distributed as dist
from structlog.typing import FilteringBoundLogger

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb

NAMED_MAX = 5
"""Replicas that a line of the log names."""

MERGES = {"why": "all have pushed, and the sync service has not merged them yet"}
NEVER_FEWER = "no round closes with fewer"
LATER_ENDS = (
    "the round closes without them when their lease runs out, or at its deadline "
    "(timeouts.round_deadline)"
)
FIRST_ENDS = (
    "the round closes without them at its deadline (timeouts.round_deadline), or, of those who "
    "have joined, when their lease runs out"
)


def voice(rank: int) -> FilteringBoundLogger:
    """The logger for what all ranks know alike: rank 0's; that of the others is silent."""
    if rank == 0:
        return structlog.get_logger()
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    return structlog.wrap_logger(None, wrapper_class=silent)


def own_rank() -> int:
    """This process's place among its replica's ranks; torchrun's word where they have not met."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    told = os.environ.get("RANK", "")
    return int(told) if told.isdecimal() else 0


def of_waiting(state: pb.FragmentState, settings: RunSettings) -> dict[str, str]:
    """Why a round that was pushed to is open still, and how long it will be.

    ``state`` is where the sync service says that the fragment stands.
    """
    least, wished = settings.min_replicas, max(settings.min_replicas, settings.replicas)
    if not state.arrived:  # though whoever asks has pushed: the round has closed meanwhile
        return MERGES
    pushed, missing = len(state.arrived), sorted({*state.expected} - {*state.arrived})
    at_least = f", with min_replicas {least} at least" if least > 1 else ""
    # Nobody is expected yet in a run that begins from a checkpoint, either.
    begins = state.revision == 0 and state.gradient_step == 0
    is_first = begins or (not state.expected and least <= pushed < wished)
    if is_first and wished > 1:
        name = "min_replicas" if wished == least else "expected_replicas"
        why = f"the first round waits for {name} {wished}, and {pushed} of {wished} have pushed"
        return {"why": why, "so": NEVER_FEWER if wished == least else FIRST_ENDS + at_least}
    if missing:
        has = "has" if len(missing) == 1 else "have"
        quorum = f", or soon after quorum {settings.quorum} is in" if settings.quorum else ""
        so = LATER_ENDS + quorum + at_least
        return {"why": f"{_some(missing)} {has} not pushed yet", "so": so}
    if pushed < least:
        return {"why": f"{pushed} of min_replicas {least} have pushed", "so": NEVER_FEWER}
    return MERGES


def _some(names: Sequence[str]) -> str:
    """The first of them by name, and how many more there are."""
    named, more = ", ".join(names[:NAMED_MAX]), len(names) - NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
