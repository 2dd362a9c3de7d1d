"""Error feedback: nothing is lost and nothing counts twice, whatever the answers to pushes are."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.agreement import Conclusion, Step
from syncline.core.feedback import GRAINS, Residuals, action_for, has_feedback, loss_of
from syncline.late import LatePushes
from syncline.push import Push
from syncline.scratch import Scratch
from syncline_proto.codec import CODEC_BY_NAME, CODECS, Float32, codec_of, published
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb

KEEP, RESTORE, CLEAR = (
    pb.RESIDUAL_ACTION_KEEP,
    pb.RESIDUAL_ACTION_RESTORE,
    pb.RESIDUAL_ACTION_CLEAR,
)
FEEDBACK: tuple[CodecName, ...] = ("int4", "topk")
FRAGMENTS, SIZE = 2, 150
COUNTS_IN = 3

Event = Literal[
    "accepted", "late", "excluded", "accepted, restored", "late, restored",
    "another codec", "plain, accepted", "plain, late", "plain, excluded",
    "aged", "published", "lost",
]  # fmt: skip
"""What becomes of a push; the plain ones are by a codec without feedback, for this push alone.

An aged one came late and counts in a round to come. Whether that is published, or its service has
forgotten the push and then finds it too old, is learnt later: the last two make no push.
"""
Wide = npt.NDArray[np.float64]

with_feedback = pytest.mark.parametrize("codec", FEEDBACK)
events = st.lists(
    st.tuples(
        st.integers(0, FRAGMENTS - 1),
        st.sampled_from(get_args(Event)),
        st.integers(0, 2**32 - 1),
    ),
    max_size=24,
)


def zeros() -> list[Wide]:
    return [np.zeros(SIZE) for _ in range(FRAGMENTS)]


def coarse(values: Float32, codec: CodecName) -> Float32:
    """What a codec of multiples of 8 loses: exact, as long as values are integers."""
    return values - 8 * np.rint(values / 8)


@dataclass
class Books:
    """A replica's residuals, and where all of its progress has gone; exact in float64."""

    codec: CodecName
    residuals: Residuals = field(default_factory=Residuals)
    epochs: list[int] = field(default_factory=lambda: [1] * FRAGMENTS)
    made: list[Wide] = field(default_factory=zeros)
    accepted: list[Wide] = field(default_factory=zeros)
    discarded: list[Wide] = field(default_factory=zeros)
    progress: list[Wide] = field(default_factory=zeros)
    """Not taken by any round yet; a late push leaves it where it is."""
    largest: float = 0.0
    scratch: Scratch = field(default_factory=Scratch)
    aged: dict[int, Wide] = field(default_factory=dict[int, Wide])
    """What the newest aged push of a fragment holds, until it is known whether it is published."""

    def __post_init__(self) -> None:
        self.late = LatePushes(self.scratch)
        for fragment, epoch in enumerate(self.epochs):
            self.residuals.see_epoch(fragment, epoch)  # the first anchors

    def residual(self, fragment: int) -> Wide:
        """What the next push would carry besides its own progress."""
        carried = np.zeros(SIZE, np.float32)
        self.residuals.load(fragment, carried)
        return carried.astype(np.float64)

    def all_residuals(self) -> list[Wide]:
        return [self.residual(fragment) for fragment in range(FRAGMENTS)]

    def meet(self, fragment: int, event: Event, made: Float32, exact: bool) -> None:
        if event in ("published", "lost"):
            self.hear(fragment, event)
        else:
            self.push(fragment, event, made, exact)

    def hear(self, fragment: int, event: Event) -> None:
        """Pull what shows whether an aged push is in: from the service that has it, or another."""
        instance = "service" if event == "published" else "another"
        lost = self.late.lost(fragment, pb.PullHeader(instance=instance, revision=COUNTS_IN))
        held = self.aged.pop(fragment, None)
        assert (lost is not None) == (event == "lost" and held is not None)
        if lost is not None and held is not None:
            self.late.drop(fragment)  # sent again it is STALE: what it holds is left out
            self.accepted[fragment] -= held
            self.discarded[fragment] += held

    def push(self, fragment: int, event: Event, made: Float32, exact: bool) -> None:
        self.made[fragment] += made
        self.progress[fragment] += made
        if event == "another codec":
            self.codec = "int4" if self.codec == "topk" else "topk"
        sent = self.progress[fragment].astype(np.float32)
        progress = sent.copy()
        self.residuals.load(fragment, sent)
        is_plain = event.startswith("plain")
        lost = np.zeros_like(sent) if is_plain else (coarse if exact else loss_of)(sent, self.codec)
        self.largest = max(self.largest, float(np.abs(sent).max()))
        judged = ANSWERS[event]
        self.residuals.settle(fragment, judged, lost if judged == KEEP and not is_plain else None)
        if judged == CLEAR:
            self.discarded[fragment] += sent
        elif judged == KEEP:
            self.accepted[fragment] += sent.astype(np.float64) - lost
        if event == "aged":  # as sent: by how much its age makes less of it is the merge's weighing
            self.aged[fragment] = sent.astype(np.float64) - lost
            memory = self.scratch.take(8)
            payload: Any = SimpleNamespace(memory=memory)
            one = Push(fragment=fragment, kind=pb.PUSH_KIND_PSEUDO_GRADIENT, payload=payload)
            answer = pb.PushResponse(result_revision=COUNTS_IN - 1, counts_in=COUNTS_IN)
            assert self.late.keep(one, pb.PushHeader(), answer, "service")
        if judged != RESTORE:
            self.progress[fragment] -= progress
        if event.endswith("restored"):
            self.discarded[fragment] += self.residual(fragment)  # others may be another service's
            self.epochs[fragment] += 1
        self.residuals.see_epoch(fragment, self.epochs[fragment])

    def off(self) -> float:
        """By how much accepted + discarded + residual + progress are not all that was made."""
        return max(
            float(np.abs(accepted + discarded + residual + progress - made).max())
            for accepted, discarded, residual, progress, made in zip(
                self.accepted,
                self.discarded,
                self.all_residuals(),
                self.progress,
                self.made,
                strict=True,
            )
        )


ANSWERS: dict[Event, pb.ResidualAction.ValueType] = {
    "accepted": KEEP,
    "accepted, restored": KEEP,
    "late": RESTORE,
    "late, restored": RESTORE,
    "excluded": CLEAR,
    "another codec": KEEP,
    "plain, accepted": KEEP,
    "plain, late": RESTORE,
    "plain, excluded": CLEAR,
    "aged": KEEP,
}


@with_feedback
@given(events=events)
@settings(max_examples=150, deadline=None)
def test_accepted_discarded_and_residual_are_all_that_was_made_exactly(
    codec: CodecName, events: list[tuple[int, Event, int]]
) -> None:
    books = Books(codec)
    for fragment, event, seed in events:
        made = np.random.default_rng(seed).integers(-99, 100, SIZE).astype(np.float32)
        books.meet(fragment, event, made, exact=True)
        assert books.off() == 0.0
        assert all(np.abs(residual).max() <= 4 for residual in books.all_residuals())


@with_feedback
@given(events=events)
@settings(max_examples=50, deadline=None)
def test_the_real_codecs_lose_no_more_than_fp32_rounds(
    codec: CodecName, events: list[tuple[int, Event, int]]
) -> None:
    books = Books(codec)
    for count, (fragment, event, seed) in enumerate(events, 1):
        made = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
        books.meet(fragment, event, made, exact=False)
        # Each push rounds three times: what was made, added, and taken away.
        assert books.off() <= 3 * count * books.largest * 2.0**-24


@with_feedback
@pytest.mark.parametrize("beyond", [-1, 0, 1, 777])
def test_the_loss_is_what_the_payload_does_not_say(codec: CodecName, beyond: int) -> None:
    number = CODEC_BY_NAME[codec]
    size = 2 * GRAINS * codec_of(number).grain + beyond
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    kept = values.copy()
    loss = loss_of(values, codec)
    assert loss.tobytes() == (values - published(values, number)).tobytes()
    assert np.array_equal(values, kept), "they may have to be sent again"
    assert loss_of(values[:0], codec).size == 0


def test_only_codecs_that_need_it_have_feedback() -> None:
    assert tuple(codec.name for codec in CODECS if codec.with_feedback) == FEEDBACK
    assert all(has_feedback(codec) for codec in FEEDBACK)
    assert not (has_feedback("fp32") or has_feedback("bf16") or has_feedback("int8"))


def test_a_life_begins_with_nothing_and_an_older_epochs_anchor_leaves_nothing() -> None:
    books = Books("int4")
    made = np.arange(SIZE, dtype=np.float32)
    assert not books.residual(0).any()
    books.push(0, "late, restored", made, exact=False)
    assert books.epochs[0] == 2
    books.push(0, "accepted", made, exact=False)
    assert books.residual(0).any()
    books.residuals.see_epoch(0, 1)  # fetched before the restore that others have told of
    assert not books.residual(0).any()
    books.push(0, "accepted", made, exact=False)
    assert books.residual(0).any(), "the epoch is still the newer one"


def test_what_is_not_finite_is_for_the_service_to_judge() -> None:
    residuals, lost = Residuals(), np.array([3e38, -np.inf, 1.0], np.float32)
    residuals.settle(0, KEEP, lost)
    values = np.array([3e38, np.inf, 1.0], np.float32)
    residuals.load(0, values)
    assert np.isinf(values[0]) and np.isnan(values[1]) and values[2] == 2.0
    assert np.isnan(loss_of(values, "int4")).any()
    residuals.settle(0, CLEAR)
    residuals.load(0, again := np.ones(3, np.float32))
    assert (again == 1.0).all()


@pytest.mark.parametrize("told", [KEEP, RESTORE, CLEAR])
def test_what_the_ranks_conclude_outweighs_what_one_was_told(
    told: pb.ResidualAction.ValueType,
) -> None:
    assert action_for(Conclusion(Step.REBASE, 3), told) == RESTORE
    assert action_for(Conclusion(Step.MERGE, 3, non_finite=True), told) == CLEAR
    merged = action_for(Conclusion(Step.MERGE, 3), told)
    assert merged == (CLEAR if told == CLEAR else KEEP)
