"""What is known of a launch while it goes on: the replicas' own words and the run's state, folded.

Pure: lines and views come in, numbers for a screen or a result go out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from syncline.launch.words import outer_rounds
from syncline.train.progress import Ending, Snapshot, Start
from syncline_proto.rest import RunState, RunView

EVENTS = {"start": Start, "progress": Snapshot, "end": Ending}

ReplicaStage = Literal["starting", "training", "ended", "kicked", "failed"]


@dataclass(slots=True, kw_only=True)
class ReplicaNow:
    """One replica, as its own lines tell. ``starting`` until it speaks for the first time."""

    name: str
    stage: ReplicaStage = "starting"
    begun: Start | None = None
    """What it told when it began; of several lives the last."""
    first: Start | None = None
    """Of several lives the first."""
    latest: Snapshot | None = None
    ending: Ending | None = None

    @property
    def last_words(self) -> Snapshot | Ending | None:
        """What it told last."""
        return self.ending or self.latest

    @property
    def held_out(self) -> str | None:
        """Its held-out loss for people; marked as long as it is that from before training."""
        last, begun = self.last_words, self.begun
        if not isinstance(last, Snapshot) or last.held_out is None or begun is None:
            return last and last.held_out
        is_old = last.held_out_loss == begun.held_out_loss
        return f"{last.held_out} (start)" if is_old else last.held_out

    def hear(self, lines: Iterable[str]) -> None:
        """Take in lines of its output; what is no event of the trainer is passed over."""
        for line in lines:
            match told := _event(line):
                case Start():
                    self.begun, self.stage = told, "training"
                    self.first = self.first or told
                case Snapshot():
                    self.latest = told
                case Ending():
                    self.ending = told
                case None:
                    continue


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
    def is_paused(self) -> bool:
        return self.state is not None and self.state.state is RunState.PAUSED

    @property
    def has_ended(self) -> bool:
        """Whether the run has: stopped, or its budget spent."""
        return self.state is not None and self.state.ended_at is not None

    def phase(self, replica: ReplicaNow) -> str:
        """What a replica does: in the words of heartbeats while it trains, else its stage."""
        if replica.stage != "training":
            return replica.stage
        if replica.ending is not None or self.has_ended:
            return "done"
        if self.is_paused:
            return "paused"
        return replica.latest.phase if replica.latest is not None else replica.stage

    def pace(self, replica: ReplicaNow) -> float | None:
        """Its tokens per second; None while it does not train."""
        ends = replica.stage != "training" or replica.ending is not None
        if ends or self.is_paused or self.has_ended or replica.latest is None:
            return None
        return replica.latest.tokens_per_second

    @property
    def speaking(self) -> dict[str, Snapshot]:
        """The last words of the replicas that train, by name."""
        return {
            replica.name: replica.latest
            for replica in self.replicas.values()
            if replica.latest is not None and replica.stage == "training"
        }

    @property
    def tokens(self) -> int:
        """The run's tokens."""
        told = [words.tokens for words in self.last_words]
        return max(told, default=self.state.committed_tokens if self.state else 0)

    @property
    def tokens_total(self) -> int | None:
        """The run's token budget, once anybody has told it."""
        told = next((r.begun.tokens_total for r in self.replicas.values() if r.begun), None)
        return self.state.settings.token_budget if told is None and self.state else told

    @property
    def tokens_per_second(self) -> float:
        """Of all replicas together."""
        return sum(self.pace(replica) or 0.0 for replica in self.replicas.values())

    @property
    def trained_per_second(self) -> float | None:
        """What all replicas together had while they trained; None while one does, or may again."""
        at_it = any(self.pace(replica) is not None for replica in self.replicas.values())
        if at_it or self.is_paused or not self.last_words:
            return None
        return math.fsum(told.tokens_per_second for told in self.last_words)

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of the budget at this speed; None while nobody can say."""
        total, speed = self.tokens_total, self.tokens_per_second
        grows = any(now.eta_s is not None for now in self.speaking.values())
        return max(0, total - self.tokens) / speed if total and speed and grows else None

    @property
    def revision(self) -> int:
        return max((told.revision for told in self.last_words), default=0)

    @property
    def rounds(self) -> int:
        """Rounds of pseudo-gradients, as each fragment has had them."""
        return outer_rounds(self.revision, self.warmup_steps)

    @property
    def synchronous_steps(self) -> int:
        """Of the synchronous phase; all of them, once there are rounds."""
        if self.revision:
            return self.warmup_steps
        steps = (told.inner_step for told in self.last_words)
        return min(self.warmup_steps, max(steps, default=0))

    @property
    def last_words(self) -> list[Snapshot | Ending]:
        """What each replica told last, of those that told something."""
        told = (replica.last_words for replica in self.replicas.values())
        return [words for words in told if words is not None]

    @property
    def exposed_sync_share(self) -> float | None:
        """Mean over the replicas that train or have come to their end, 0 to 1."""
        at_it = [r for r in self.replicas.values() if r.stage in ("training", "ended")]
        shares = [told.exposed_sync_share for r in at_it if (told := r.last_words) is not None]
        return math.fsum(shares) / len(shares) if shares else None


class Screen(Protocol):
    """Somebody who shows how it goes."""

    def say(self, sentence: str) -> None:
        """Tell what happens now."""
        ...

    def update(self, view: View) -> None:
        """Show the newest view; called several times a second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a launch ended. Losses are nats per token, over the held-out sample."""

    run: str
    folder: str
    replicas: dict[str, Ending]
    failed: list[str]
    """Replicas that did not come to the end."""
    kicked: list[str]
    """Replicas that an operator removed."""
    left: list[str]
    """Replicas that were asked to leave before they trained."""
    has_ended: bool
    """Whether the run has; if not, it waits for replicas at the revision told here."""
    token_budget: int | None
    held_out_start: float | None
    bits_per_byte_start: float | None
    bits_per_byte_end: float | None
    """Of the merged model; None where no replica evaluated this revision of it."""
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
    exposed_sync_share: float | None
    """None where no replica told it."""
    page: str | None = None
    """None where the services have ended, and the page with them."""
    export: str | None = None
    """None where no round was committed, so that there is nothing to export."""
    sample: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def result(view: View, folder: str, seconds: float) -> Result | None:
    """Return how it ended; None if no replica came to its end, and no round to a revision."""
    endings = {r.name: r.ending for r in view.replicas.values() if r.ending is not None}
    told = view.state
    revision = max(view.revision, told.revision if told else 0)
    if not endings and not revision:
        return None
    # The merged model of the newest revision that anybody evaluated.
    ends = sorted(endings.values(), key=lambda end: (end.held_out_merged is not None, end.revision))
    last = ends[-1] if ends else None
    # Of who was there first: who joins later begins with what others have trained.
    first = next((r.first for r in view.replicas.values() if r.first is not None), None)
    words = [*endings.values()] or view.last_words
    shares = [one.exposed_sync_share for one in words]
    without_end = {r.name: r.stage for r in view.replicas.values() if r.ending is None}
    return Result(
        run=view.run,
        folder=folder,
        replicas=endings,
        failed=[n for n, stage in without_end.items() if stage not in ("kicked", "ended")],
        kicked=[n for n, stage in without_end.items() if stage == "kicked"],
        left=[n for n, stage in without_end.items() if stage == "ended"],
        has_ended=view.has_ended or any(end.reason != "drained" for end in ends),
        token_budget=view.tokens_total,
        held_out_start=first and first.held_out_loss,
        bits_per_byte_start=first and first.bits_per_byte,
        bits_per_byte_end=last and last.bits_per_byte_merged,
        held_out_merged=last and last.held_out_merged,
        tokens=last.tokens if last else view.tokens,
        seconds=seconds,
        tokens_per_second=math.fsum(one.tokens_per_second for one in words),
        revision=revision,
        synchronous_steps=view.synchronous_steps,
        rounds=outer_rounds(revision, view.warmup_steps),
        exclusions=told.exclusions if told else 0,
        exposed_sync_share=math.fsum(shares) / len(shares) if shares else None,
    )


def of_export(ended: Result, made: Mapping[str, Any], warmup_steps: int) -> Result:
    """Return the result with the figures of the revision that was exported.

    ``made`` is what ``syncline export --json`` tells. A loss is that of whoever evaluated this
    very revision, or missing: the launch outlived its replicas, and evaluates nothing itself.
    """
    revision = int(made["revision"])
    seen = (end for end in ended.replicas.values() if end.revision == revision)
    found = next((end for end in seen if end.held_out_merged is not None), None)
    return replace(
        ended,
        export=str(made["folder"]),
        revision=revision,
        rounds=outer_rounds(revision, warmup_steps),
        tokens=int(made["committed_tokens"]),
        held_out_merged=found and found.held_out_merged,
        bits_per_byte_end=found and found.bits_per_byte_merged,
    )


def _event(line: str) -> Start | Snapshot | Ending | None:
    """What the trainer tells in a line; None: these are the words of somebody else."""
    try:
        told = json.loads(line)
        return EVENTS[told.pop("event")](**told)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None  # no JSON, or of another shape, as what a user's own code prints may be
