"""The REST bodies with which sync services tell of rounds and events.

As in ``rest``: what a request and an answer share (``RoundReport``) is an answer that a request
reads strictly, and a list stops at its first wrong part.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, FailFast, Field, FiniteFloat

from syncline_proto.names import KIND_PATTERN, LINE_PATTERN, NAME_PATTERN
from syncline_proto.ranges import RANGES_MAX, Range
from syncline_proto.rest import Answer, Count, Request, strictly
from syncline_proto.stretches import Stretch, are_apart


class ContributionView(Answer):
    """What became of one replica's push in a round."""

    replica: str = Field(pattern=NAME_PATTERN)
    incarnation: int
    verdict: Literal["accepted", "anomalous"]
    weight: FiniteFloat
    norm: float | None = None
    """None if it was not finite."""
    z: float | None = None
    inner_steps: int = 0
    tokens: int = 0
    reason: str = ""
    age: Count = 0
    """Revisions between its base and the one that the round began from; 0: it was in time."""
    data: Annotated[list[Range], FailFast()] = Field(
        default_factory=list[Range], max_length=RANGES_MAX
    )
    """Sequences that the push was trained on, where the run's data is leased."""


def _apart(given: list[Stretch]) -> list[Stretch]:
    if not are_apart(given):
        raise ValueError("they must be sorted, with gaps in between")
    return given


Kept = Annotated[list[Stretch], FailFast(), AfterValidator(_apart)]


class FragmentData(Answer):
    """All sequences of leased data that pushes to a fragment were trained on, since it began."""

    trained: Kept = Field(default_factory=list[Stretch])
    """[epoch, start, stop, epochs]: those positions of each of so many epochs, ``stop`` excluded;
    of one epoch where the last is left out."""
    excluded: Kept = Field(default_factory=list[Stretch])
    """Of those that were judged anomalous."""


class RoundReport(Answer):
    """One committed round of one fragment."""

    fragment: Count
    fragment_name: str
    kind: Literal["pseudo-gradient", "gradient", "parameters"]
    revision: Count
    gradient_step: Count = 0
    committed_at: FiniteFloat
    seconds: FiniteFloat
    """From the round's first push to its publication."""
    committed_tokens: Count = 0
    closed_by: Literal["everyone", "push", "quorum", "deadline", "loss", "offer"] = "everyone"
    effective_sample_size: float | None = None
    merged_norm: float | None = None
    clip_factor: float | None = None
    momentum_cosine: float | None = None
    """Between what was merged and the outer momentum, the mean over tensors, where directions are
    corrected (``outer.direction``)."""
    contributions: Annotated[list[ContributionView], FailFast()] = Field(
        default_factory=list[ContributionView]
    )
    fragments: Count = 0
    """How many the run has; 0: not told."""
    data: FragmentData | None = None
    """Told with where a fragment stands."""
    after_event: Count = 0
    """Id of the control plane's newest event when it heard of this; whatever a service says of it.
    So both have an order, where the clocks of two machines would not tell it."""


class EventIn(Request):
    """Something worth a line in the run's log, in plain words."""

    kind: str = Field(max_length=64, pattern=KIND_PATTERN, examples=["replica.joined"])
    message: str
    replica: str | None = Field(default=None, max_length=63, pattern=LINE_PATTERN)


class Settled(Request):
    """Nothing is open in a fragment of lives that are in no membership from this version on.

    All of it that counts has been told before. Said where the membership asks for it.
    """

    fragment: Count
    membership: Count


class Reports(Request):
    """What a sync service tells of a run, in one batch."""

    rounds: Annotated[list[Annotated[RoundReport, strictly(RoundReport)]], FailFast()] = Field(
        default_factory=list[RoundReport], max_length=10_000
    )
    events: Annotated[list[EventIn], FailFast()] = Field(
        default_factory=list[EventIn], max_length=10_000
    )
    settled: Annotated[list[Settled], FailFast()] = Field(
        default_factory=list[Settled], max_length=10_000
    )
