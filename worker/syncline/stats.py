"""What a replica tells of itself: to its loop, and to the control plane with each heartbeat.

Only reads what a session has counted; when to tell is for others to say.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from syncline.alone import Alone
from syncline.session import Session
from syncline_proto.errors import ConfigError
from syncline_proto.rest import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What synchronisation has cost and brought since the replica joined."""

    exposed_sync_s: float
    """Time that training has waited for synchronisation."""
    hook_s: float
    """Time that Syncline's hooks took besides."""
    paused_s: float
    """Time that the run was paused, which counts as neither."""
    bytes_up: int
    """Payload of the pushes of all ranks; the other ranks' as of the last push, or ``finish``."""
    bytes_down: int
    rounds: int
    """Merged rounds, as the last fragment counts them."""
    barren: int
    """Rounds in a row, up to the last one, in which nobody's push counted."""
    stale: int
    """Pushes that came too late to count, over all fragments."""
    aged: int
    """Pushes that came late and counted, with their age, over all fragments."""
    last_age: int
    """Of the last of these, in revisions; 0: there was none."""
    anomalous: int
    """Pushes that were given weight 0, over all fragments."""


SAID = {"inner_lr": "lr"}
"""What ``report`` calls it, where heartbeats call it otherwise."""


def number_of(value: float | Tensor, name: str) -> float:
    """A figure of a loop, which may still hang on the graph that computed it.

    Raises:
        ConfigError: it is no number.
    """
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        name = SAID.get(name, name)
        shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else None
        raise ConfigError(
            f"{name} must be one number, not {shape or reprlib.repr(value)}."
        ) from None


def stats_of(session: Session | Alone) -> Stats:
    tally = session.tally
    return Stats(
        exposed_sync_s=tally.exposed_s,
        hook_s=tally.hook_s,
        paused_s=tally.paused_s,
        bytes_up=session.bytes_up,
        bytes_down=session.bytes_down,
        rounds=tally.rounds,
        barren=tally.barren,
        stale=tally.stale,
        aged=tally.aged,
        last_age=tally.last_age,
        anomalous=tally.anomalous,
    )


def progress_of(session: Session | Alone, said: Mapping[str, float]) -> Progress:
    """What a heartbeat says, from any thread; ``said`` are the loop's own figures.

    Of these, the ones that heartbeats have a place for.
    """
    tally = session.tally
    own = {key: value for key, value in said.items() if key in Progress.model_fields}
    return Progress(
        phase=session.phase if isinstance(session, Session) else "joining",
        inner_step=tally.inner_step,
        tokens=tally.tokens,
        committed_tokens=tally.committed,
        revision=session.revision,
        exposed_sync_s=tally.exposed_s,
        wall_s=session.wall_s,
        bytes_up=session.bytes_up,
        bytes_down=session.bytes_down,
        **own,
    )
