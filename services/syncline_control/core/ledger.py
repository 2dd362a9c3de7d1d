"""Who reads which sequences of a run's data, and what has become of them.

Pure: callers hand in ``now``, seconds on one clock. A dataset is walked epoch by epoch; of an epoch
each position is untouched (nobody was ever given it), free again, leased to one life of one
replica, or done: *trained* if the pushes of it that were committed counted in any fragment, else
*excluded*. It is done once every fragment has committed such a push; what is done is not given
out again. What is given out first is of the lowest epoch: the least trained.

A life that is gone may have pushes under way that still count. So its sequences are free only once
no round can be open that has one of them: until then they *settle*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from syncline_proto.ranges import (
    NOTHING,
    RANGES_MAX,
    Range,
    Ranges,
    common,
    count,
    joined,
    without,
)

EPOCHS_AHEAD_MAX = 1_000
"""Epochs that somebody may be ahead of what was given out; what tells of more is passed over."""


class Life(NamedTuple):
    """One life of one replica."""

    replica: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Span:
    """Sequences in a row that fare alike, and are not done."""

    range: Range
    life: Life | None = None
    """Who was given them last; None: they are free, or nobody knows."""
    grant: int = 0
    """With which of its grants, counted from 1."""
    covered: int = 0
    """Bit f: fragment f has committed a push that was trained on them."""
    folded: bool = False
    """One of those pushes counted."""
    until: float | None = None
    """When they are free, unless they are done by then; None: they do not settle."""

    @property
    def is_free(self) -> bool:
        return self.life is None and self.until is None


@dataclass(frozen=True, slots=True)
class Done:
    """What is done of an epoch; the two are apart."""

    trained: Ranges = NOTHING
    excluded: Ranges = NOTHING


class Push(NamedTuple):
    """What fragments (as bits) have committed: these sequences, in a push that counted or not."""

    fragments: int
    data: Ranges
    folded: bool


class Ledger:
    """The data of one run.

    Invariants:
        - every position below ``next`` is in one span or done, and none is both;
        - positions only leave ``done`` where a fragment has gone back behind them;
        - nobody is given what somebody else holds, or what settles.
    """

    def __init__(
        self,
        sequences: int,
        fragments: int,
        next_: tuple[int, int] = (0, 0),
        spans: Iterable[Span] = (),
        done: Mapping[int, Done] | None = None,
    ) -> None:
        """``fragments``: how many the run's layout has; 0: not known yet, so nothing is done.

        ``next_``: epoch and position from which on all is untouched.
        """
        assert sequences > 0
        self._size, self._all = sequences, (1 << fragments) - 1
        self.next = next_
        self.spans = sorted(spans, key=_place)
        self.done = dict(done or {})

    @property
    def epoch(self) -> int:
        """The lowest epoch of which not everything is done."""
        return min((span.range.epoch for span in self.spans), default=self.next[0])

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is done, nor can be: nobody holds any."""
        return not self.done and all(s.is_free and not s.covered for s in self.spans)

    def see_lives(
        self, alive: Mapping[str, int], now: float, settle_s: float, *, rounds_close: bool = True
    ) -> int:
        """Let settle what was given to lives that are gone, and free what has.

        Args:
            alive: replica -> incarnation of those that hold their lease.
            now: seconds.
            settle_s: as long as a round may be open, where ``rounds_close``; else nothing is free.

        Returns:
            How many sequences are free again.
        """
        freed, changed = 0, False
        for at, span in enumerate(self.spans):
            if span.until is not None and not rounds_close:
                self.spans[at], changed = replace(span, until=now + settle_s), True
            elif span.until is not None and span.until <= now:
                freed, changed = freed + count((span.range,)), True
                self.spans[at] = Span(span.range)
            elif span.until is None and span.life and _is_gone(span.life, alive):
                self.spans[at], changed = replace(span, until=now + settle_s), True
        if changed:
            self._tidy()
        return freed

    def granted(self, life: Life, after: int) -> tuple[int, Ranges]:
        """What a life was given with grants later than ``after``, and the number of the last.

        Who has not heard the answer to its last call asks for them once more.
        """
        mine = [span for span in self.spans if span.life == life and span.grant > after]
        newest = max((span.grant for span in mine), default=after)
        return newest, joined(span.range for span in mine)

    def grant(self, life: Life, number: int, want: int) -> Ranges:
        """Give out up to so many sequences, the least trained first."""
        given: list[Range] = []
        for span in [span for span in self.spans if span.is_free]:
            if want <= 0 or len(given) >= RANGES_MAX:
                break
            given.append(_head(span.range, want))
            want -= count(given[-1:])
        while want > 0 and len(given) < RANGES_MAX:
            epoch, start = self.next
            given.append(_head(Range(epoch, start, self._size), want))
            want -= count(given[-1:])
            self._touch(given[-1:])
        ranges = joined(given)
        for at in self._cut(ranges):
            self.spans[at] = Span(self.spans[at].range, life, number)
        self._tidy()
        return ranges

    def take_back(self, life: Life, ranges: Ranges) -> int:
        """Free what a life says that it will push nothing of; how many sequences those were."""
        if not ranges:
            return 0
        freed = 0
        for at in self._cut(self._within(ranges)):
            span = self.spans[at]
            if span.life == life and span.until is None:
                freed += count((span.range,))
                self.spans[at] = Span(span.range)
        self._tidy()
        return freed

    def cover(self, pushes: Iterable[Push], until: float) -> None:
        """Fragments have committed pushes.

        Nobody is given what other fragments are yet to commit: it settles ``until`` then, where
        nobody holds it.
        """
        for push in pushes:
            ranges = self._within(push.data)
            self._touch(ranges)
            for at in self._cut(ranges):
                span = self.spans[at]
                self.spans[at] = replace(
                    span,
                    covered=span.covered | push.fragments,
                    folded=span.folded or push.folded,
                    until=until if span.is_free else span.until,
                )
        self._finish()
        self._tidy()

    def stands(self, fragments: int, trained: Ranges, excluded: Ranges, until: float) -> None:
        """A fragment (as a bit) says all that it has committed: what it lacks, it has lost.

        Its service may have gone back by a revision. Who has read that pushes it again, if it is
        there still: so it settles first.
        """
        known = joined(trained, excluded)
        others = self._all & ~fragments
        back: list[Span] = []
        for epoch, done in list(self.done.items()):
            left = Done(common(done.trained, known), common(done.excluded, known))
            for was, still, folded in (
                (done.trained, left.trained, True),
                (done.excluded, left.excluded, False),
            ):
                lost = without(was, still)
                back += [Span(one, None, 0, others, folded, until) for one in lost]
            self.done[epoch] = left
        self.spans = sorted([*self.spans, *back], key=_place)
        for at in self._cut(without(joined(span.range for span in self.spans), known)):
            self.spans[at] = replace(self.spans[at], covered=self.spans[at].covered & ~fragments)
        pushes = (Push(fragments, trained, True), Push(fragments, excluded, False))
        self.cover(pushes, until)

    def _finish(self) -> None:
        """Move what every fragment has committed to what is done."""
        full = [span for span in self.spans if self._all and span.covered & self._all == self._all]
        if not full:
            return
        for epoch in {span.range.epoch for span in full}:
            done = self.done.get(epoch, Done())
            of_epoch = [span for span in full if span.range.epoch == epoch]
            trained = [span.range for span in of_epoch if span.folded]
            excluded = [span.range for span in of_epoch if not span.folded]
            self.done[epoch] = Done(joined(done.trained, trained), joined(done.excluded, excluded))
        gone = {span.range for span in full}
        self.spans = [span for span in self.spans if span.range not in gone]

    def _within(self, ranges: Ranges) -> Ranges:
        """What of them there is: whoever pushes may have told us anything."""
        last = self.next[0] + EPOCHS_AHEAD_MAX
        return tuple(
            Range(epoch, start, min(stop, self._size))
            for epoch, start, stop in ranges
            if epoch <= last and start < self._size
        )

    def _touch(self, ranges: Iterable[Range]) -> None:
        """Have spans of all up to the ends of these; they come in order."""
        for epoch, _, stop in ranges:
            while self.next < (epoch, stop):
                at, start = self.next
                end = stop if at == epoch else self._size
                self.spans.append(Span(Range(at, start, end)))
                self.next = (at, end) if end < self._size else (at + 1, 0)

    def _cut(self, ranges: Ranges) -> list[int]:
        """Cut spans so that each lies inside ``ranges`` or outside; where those inside are."""
        inside: list[int] = []
        spans = self.spans
        for epoch, start, stop in ranges:
            at = bisect_left(spans, (epoch, start), key=_place)
            if at and spans[at - 1].range.epoch == epoch and spans[at - 1].range.stop > start:
                self._split(at - 1, start)
            while at < len(spans) and _place(spans[at]) < (epoch, stop):
                if spans[at].range.stop > stop:
                    self._split(at, stop)
                inside.append(at)
                at += 1
        return inside

    def _split(self, at: int, where: int) -> None:
        """Cut one span in two."""
        span = self.spans[at]
        epoch, start, stop = span.range
        self.spans[at : at + 1] = [
            replace(span, range=Range(epoch, start, where)),
            replace(span, range=Range(epoch, where, stop)),
        ]

    def _tidy(self) -> None:
        """Join neighbours that fare alike."""
        tidy: list[Span] = []
        for span in self.spans:
            if tidy and _fare_alike(tidy[-1], span):
                epoch, start, _ = tidy[-1].range
                span = replace(span, range=Range(epoch, start, span.range.stop))
                tidy.pop()
            tidy.append(span)
        self.spans = tidy


class EpochCounts(NamedTuple):
    """Sequences of an epoch, by what has become of them; together they are all of it."""

    epoch: int
    trained: int
    excluded: int
    leased: int
    """To somebody who is there, or was until a moment ago."""
    free: int


def counts(ledger: Ledger, sequences: int) -> list[EpochCounts]:
    """Count every epoch that anything was given out of, the first one first."""
    leased: dict[int, int] = {}
    for span in ledger.spans:
        if not span.is_free:
            epoch = span.range.epoch
            leased[epoch] = leased.get(epoch, 0) + count((span.range,))
    found: list[EpochCounts] = []
    for epoch in sorted({*ledger.done, *(span.range.epoch for span in ledger.spans)}):
        done = ledger.done.get(epoch, Done())
        trained, excluded = count(done.trained), count(done.excluded)
        held = leased.get(epoch, 0)
        free = sequences - trained - excluded - held
        found.append(EpochCounts(epoch, trained, excluded, held, free))
    return found


def _place(span: Span) -> tuple[int, int]:
    return span.range.epoch, span.range.start


def _is_gone(life: Life, alive: Mapping[str, int]) -> bool:
    return alive.get(life.replica) != life.incarnation


def _head(range_: Range, want: int) -> Range:
    epoch, start, stop = range_
    return Range(epoch, start, min(stop, start + want))


def _fare_alike(one: Span, other: Span) -> bool:
    """Whether two spans are one that was cut."""
    return (
        (one.range.epoch, one.range.stop) == (other.range.epoch, other.range.start)
        and (one.life, one.grant, one.until) == (other.life, other.grant, other.until)
        and (one.covered, one.folded) == (other.covered, other.folded)
    )
