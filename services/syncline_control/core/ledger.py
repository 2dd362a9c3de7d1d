"""Who reads which sequences of a run's data, and what has become of them.

Pure: callers hand in ``now``, seconds on one clock. A dataset is walked epoch by epoch; of an epoch
each position is untouched (nobody was ever given it), free again, leased to one life of one
replica, or done: *trained* if the pushes of it that were committed counted in any fragment, else
*excluded*. It is done once every fragment has committed such a push; what is done is not given
out again. What is given out first is of the lowest epoch: the least trained.

A life that is gone may have pushes in open rounds, which may stay open for any time and still
count. So its sequences *settle*: they are free once every fragment has said, after what it has
committed, that nothing is open in it of lives that are gone. That is by versions of the membership:
who is not in it any more as of one is fenced by whoever has adopted that. Time frees only what no
such word can come for: of a run whose fragments have not all been heard of, and what was read by
nobody knows whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from syncline_control.core.shares import pieces
from syncline_control.core.spans import Life, Span, cut, placed, tidied
from syncline_proto.ranges import NOTHING, Range, Ranges, common, count, joined, without

EPOCHS_AHEAD_MAX = 1_000
"""Of what was never given out, a push may be so many epochs ahead of the lowest that is not done
(the database is new, and did not give it); what tells of more is passed over."""


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
    life: Life | None = None
    """Whose it was; None: nobody knows."""


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
        self.spans = placed(spans)
        self.done = dict(done or {})

    @property
    def epoch(self) -> int:
        """The lowest epoch of which not everything is done."""
        return min((span.range.epoch for span in self.spans), default=self.next[0])

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is done, nor can be: nobody holds any."""
        return not self.done and all(s.is_free and not s.covered for s in self.spans)

    @property
    def awaits(self) -> int:
        """The version that every fragment's word must be of, for all to be free; 0: of none."""
        return max((span.gone for span in self.spans), default=0)

    def see_lives(
        self,
        alive: Mapping[str, int],
        now: float,
        settle_s: float,
        *,
        rounds_close: bool = True,
        version: int = 0,
        settled: int | None = None,
    ) -> int:
        """Let settle what was given to lives that are gone, and free what has.

        Args:
            alive: replica -> incarnation of those that hold their lease.
            now: seconds.
            settle_s: what time frees is free after so long, where ``rounds_close``; else not.
            version: of the membership that ``alive`` is of.
            settled: the lowest version that a fragment has said nothing is open of; None: not all
                have been heard of.

        Returns:
            How many sequences are free again.
        """
        freed, changed = 0, False
        for at, span in enumerate(self.spans):
            if span.until is None:
                if span.life and _is_gone(span.life, alive):
                    settles = replace(span, until=now + settle_s, gone=version)
                    self.spans[at], changed = settles, True
            elif span.gone and settled is not None:
                if span.gone <= settled:
                    freed, changed = freed + count((span.range,)), True
                    self.spans[at] = span.freed()
            elif not rounds_close:
                self.spans[at], changed = replace(span, until=now + settle_s), True
            elif span.until <= now:
                freed, changed = freed + count((span.range,)), True
                self.spans[at] = span.freed()
        if changed:
            self.spans = tidied(self.spans)
        return freed

    def granted(self, life: Life, after: int) -> tuple[int, Ranges]:
        """What a life was given with grants later than ``after``, and the number of the last.

        Who has not heard its last answer asks for them once more; of what was heard, pieces join.
        """
        for at, span in enumerate(self.spans):
            if span.life == life and span.grant < after:
                self.spans[at] = replace(span, grant=after)
        self.spans = tidied(self.spans)
        mine = [span for span in self.spans if span.life == life and span.grant > after]
        newest = max((span.grant for span in mine), default=after)
        return newest, joined(span.range for span in mine)

    def grant(self, life: Life, number: int, want: int, others: int = 0) -> Ranges:
        """Give out up to so many sequences, the least trained first, if the life may hold more.

        ``others``: spans of the run that are not here.
        """
        given: list[Range] = []
        held = sum(span.life[:1] == life[:1] for span in self.spans if span.life)
        most = pieces(held, len(self.spans) + others)
        for span in [span for span in self.spans if span.is_free]:
            if want <= 0 or len(given) >= most:
                break
            given.append(_head(span.range, want))
            want -= count(given[-1:])
        while want > 0 and len(given) < most:
            epoch, start = self.next
            given.append(_head(Range(epoch, start, self._size), want))
            want -= count(given[-1:])
            self._touch(given[-1:])
        ranges = joined(given)
        for at in cut(self.spans, ranges):
            self.spans[at] = replace(self.spans[at], life=life, grant=number)
        self.spans = tidied(self.spans)
        return ranges

    def take_back(self, life: Life, ranges: Ranges) -> int:
        """Free what a life says that it will push nothing of; how many sequences those were."""
        if not ranges:
            return 0
        freed = 0
        for at in cut(self.spans, self._within(ranges)):
            span = self.spans[at]
            if span.life == life and span.until is None:
                freed += count((span.range,))
                self.spans[at] = span.freed()
        self.spans = tidied(self.spans)
        return freed

    def cover(self, pushes: Iterable[Push], until: float) -> None:
        """Fragments have committed pushes.

        Nobody is given what other fragments are yet to commit: where nobody holds it, whose push
        it was does; where that is not known it settles ``until`` then.
        """
        for push in pushes:
            ranges = self._within(push.data)
            self._touch(ranges)
            for at in cut(self.spans, ranges):
                span = self.spans[at]
                if span.is_free and push.fragments & ~span.covered:
                    span = replace(span, life=push.life, until=None if push.life else until)
                self.spans[at] = replace(
                    span,
                    covered=span.covered | push.fragments,
                    folded=span.folded or push.folded,
                )
        self._finish()
        self.spans = tidied(self.spans)

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
        self.spans = placed([*self.spans, *back])
        for at in cut(self.spans, without(joined(span.range for span in self.spans), known)):
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
        last = max(self.next[0], self.epoch + EPOCHS_AHEAD_MAX)
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


def _is_gone(life: Life, alive: Mapping[str, int]) -> bool:
    return alive.get(life.replica) != life.incarnation


def _head(range_: Range, want: int) -> Range:
    epoch, start, stop = range_
    return Range(epoch, start, min(stop, start + want))
