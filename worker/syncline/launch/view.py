"""What is known of a launch while it goes on: the replicas' own words and the run's state, folded.

Pure: lines and views come in, numbers for a screen or a result go out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from syncline.train.progress import Ending, Snapshot, Start
from syncline_proto.rest import RunView

ReplicaStage = Literal["starting", "training", "ended", "failed"]


@dataclass(slots=True, kw_only=True)
class ReplicaNow:
    """One replica, as its own lines tell. ``starting`` until it speaks for the first time."""

    name: str
    stage: ReplicaStage = "starting"
    begun: Start | None = None
    latest: Snapshot | None = None
    ending: Ending | None = None

    def hear(self, lines: Iterable[str]) -> None:
        """Take in lines of its output; what is no event of the trainer is passed over."""
        for line in lines:
            told = _event(line)
            match told.pop("event", None):
                case "start":
                    self.begun, self.stage = Start(**told), "training"
                case "progress":
                    self.latest = Snapshot(**told)
                case "end":
                    self.ending = Ending(**told)


@dataclass(slots=True, kw_only=True)
class View:
    """Everything that a screen may show."""

    run: str
    page: str
    replicas: dict[str, ReplicaNow]
    warmup_steps: int = 0
    """The run's; see ``outer_rounds``."""
    state: RunView | None = None
    """As the control plane last told it."""

    @property
    def speaking(self) -> list[Snapshot]:
        """The last words of the replicas that train."""
        return [
            replica.latest
            for replica in self.replicas.values()
            if replica.latest is not None and replica.stage == "training"
        ]

    @property
    def tokens(self) -> int:
        """The run's tokens."""
        told = [replica.latest.tokens for replica in self.replicas.values() if replica.latest]
        return max(told, default=self.state.committed_tokens if self.state else 0)

    @property
    def tokens_total(self) -> int | None:
        """The run's token budget, once a replica has told it."""
        return next((r.begun.tokens_total for r in self.replicas.values() if r.begun), None)

    @property
    def tokens_per_second(self) -> float:
        """Of all replicas together."""
        return sum(one.tokens_per_second or 0.0 for one in self.speaking)

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of the budget at this speed; None while nobody can say."""
        total, speed = self.tokens_total, self.tokens_per_second
        return max(0, total - self.tokens) / speed if total and speed else None

    @property
    def revision(self) -> int:
        return max((told.revision for told in self._last_words), default=0)

    @property
    def rounds(self) -> int:
        """Rounds of pseudo-gradients, as each fragment has had them."""
        return outer_rounds(self.revision, self.warmup_steps)

    @property
    def synchronous_steps(self) -> int:
        """Of the synchronous phase; all of them, once there are rounds."""
        if self.revision:
            return self.warmup_steps
        steps = (told.inner_step for told in self._last_words)
        return min(self.warmup_steps, max(steps, default=0))

    @property
    def _last_words(self) -> list[Snapshot | Ending]:
        """What each replica told last, of those that told something."""
        told = (replica.ending or replica.latest for replica in self.replicas.values())
        return [words for words in told if words is not None]

    @property
    def exposed_sync_share(self) -> float | None:
        """Mean over the replicas that train, 0 to 1."""
        shares = [one.exposed_sync_share for one in self.speaking]
        return math.fsum(shares) / len(shares) if shares else None


def outer_rounds(revision: int, warmup_steps: int) -> int:
    """Rounds of pseudo-gradients that led a fragment to ``revision``.

    The first revision after a synchronous phase is what a replica offered: no outer step made it.
    """
    return max(0, revision - (1 if warmup_steps else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a launch ended. Losses are nats per token, over the held-out sample."""

    run: str
    folder: str
    replicas: dict[str, Ending]
    failed: list[str]
    """Replicas that did not come to the end."""
    bits_per_byte_start: float | None
    bits_per_byte_end: float | None
    """Of the merged model; None if the run was stopped before it had one."""
    held_out_merged: float | None
    tokens: int
    seconds: float
    """From the launch to the end of training."""
    tokens_per_second: float
    """Of all replicas together, while they trained."""
    revision: int
    synchronous_steps: int
    rounds: int
    """Rounds of pseudo-gradients per fragment: the revisions that outer steps made."""
    exclusions: int
    exposed_sync_share: float
    page: str | None = None
    """None where the services have ended, and the page with them."""
    export: str | None = None
    """None where no round was committed, so that there is nothing to export."""
    sample: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def result(view: View, folder: str, seconds: float) -> Result | None:
    """Return how it ended; None if no replica came to its end."""
    endings = {r.name: r.ending for r in view.replicas.values() if r.ending is not None}
    if not endings:
        return None
    # The merged model of the newest revision that anybody evaluated.
    last = max(endings.values(), key=lambda end: (end.held_out_merged is not None, end.revision))
    shares = [ending.exposed_sync_share for ending in endings.values()]
    return Result(
        run=view.run,
        folder=folder,
        replicas=endings,
        failed=[name for name in view.replicas if name not in endings],
        bits_per_byte_start=last.bits_per_byte_start,
        bits_per_byte_end=last.bits_per_byte_merged,
        held_out_merged=last.held_out_merged,
        tokens=last.tokens,
        seconds=seconds,
        tokens_per_second=math.fsum(ending.tokens_per_second for ending in endings.values()),
        revision=last.revision,
        synchronous_steps=view.synchronous_steps,
        rounds=outer_rounds(last.revision, view.warmup_steps),
        exclusions=view.state.exclusions if view.state else 0,
        exposed_sync_share=math.fsum(shares) / len(shares),
    )


def _event(line: str) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
