"""Words and figures of a run that commands and live screens share. Loads nothing."""

from __future__ import annotations


def way_on(run: str) -> str:
    """What lets a paused run go on."""
    return f"`syncline runs resume {run}` goes on"


def rounds_by_time(seconds: float) -> str:
    """What a run by time has people wait for."""
    return (
        f"Each fragment has a round every {seconds:g} s (run.sync_seconds), and the run ends with "
        "one, however small its token budget."
    )


def outer_rounds(revision: int, warmup_steps: int) -> int:
    """Rounds of pseudo-gradients that led a fragment to ``revision``.

    The first revision after a synchronous phase is what a replica offered: no outer step made it.
    """
    return max(0, revision - (1 if warmup_steps else 0))
