"""The REST bodies of leased data: who asks for sequences, and how a run's data stands."""

from __future__ import annotations

from typing import Annotated

from pydantic import FailFast, Field

from syncline_proto.names import LINE_PATTERN
from syncline_proto.ranges import POSITION_MAX, RANGES_MAX, Place, Range
from syncline_proto.rest import Answer, Request

WANT_MAX = 1 << 24
"""Sequences asked for at a time."""


class Dataset(Request):
    """What the replicas of a run walk, and in which order; the same for all of them."""

    sequences: int = Field(ge=1, le=POSITION_MAX)
    seed: int = Field(ge=-(1 << 63), le=(1 << 63) - 1)
    """Of the permutations of the epochs."""
    content: str = Field(default="", max_length=128, pattern=LINE_PATTERN)
    """Names what the sequences are, where that is known. A replica that gives another name is
    refused; one that gives none is not."""


class DataAsk(Request):
    """Ask for sequences to read, and give back what will not be pushed."""

    incarnation: int
    dataset: Dataset
    want: int = Field(default=0, ge=0, le=WANT_MAX)
    """Sequences to lease with this call."""
    after: int = Field(default=0, ge=0, lt=POSITION_MAX)
    """The number of the last grant that was heard; 0 before the first."""
    returned: Annotated[list[Range], FailFast()] = Field(
        default_factory=list[Range], max_length=RANGES_MAX
    )
    """Leased sequences of which nothing was pushed, nor will be; sorted, with gaps in between."""
    begun: bool = False
    """Whether the asker holds a published value of the run. Its fragments may then have pushes that
    this control plane was never told of: it leases once it knows where all of them stand."""


class DataGrant(Answer):
    """Sequences that are leased to the asker until a push of them is committed, or it is gone."""

    number: Place
    """Of this grant: what the next call says in ``after``."""
    ranges: list[Range]
    """[epoch, start, stop]: positions of the epoch's order, ``stop`` excluded. Fewer than were
    asked for, or none, where the asker holds as many pieces as it may."""


class EpochView(Answer):
    """Sequences of one epoch, by what has become of them; together they are all of the dataset."""

    epoch: int
    trained: int
    excluded: int
    """All pushes of them were judged anomalous. They are not given out again."""
    leased: int
    free: int


class HolderView(Answer):
    """Sequences that one replica holds; it may be gone, and a push of it under way."""

    replica: str
    sequences: int


class DataView(Answer):
    """How far a run has come in its data."""

    dataset: Dataset | None = None
    """None: nobody has asked for any; the run's data is dealt, or streamed."""
    epoch: int = 0
    """The lowest that is not done."""
    trained: int = 0
    """Sequences, over all epochs."""
    excluded: int = 0
    leased: int = 0
    epochs: list[EpochView] = Field(default_factory=list[EpochView])
    """The newest, oldest of them first."""
    epochs_left_out: int = 0
    """Older ones, from 0 on, that are not among ``epochs``."""
    holders: list[HolderView] = Field(default_factory=list[HolderView])
