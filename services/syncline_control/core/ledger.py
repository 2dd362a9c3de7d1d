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

Inside, all of it is on one track (``track``); in calls and answers it is by epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from syncline_control.core.shares import pieces
from syncline_control.core.spans import Life, Span, cut, placed, tidied
from syncline_control.core.track import LENGTH_MAX, Track, reach
from syncline_proto.ranges import NOTHING, Range, Ranges, common, count, joined, without
from syncline_proto.stretches import Stretches

EPOCHS_AHEAD_MAX = 1_000
"""Of what was never given out, a push may be so many epochs ahead of the lowest that is not done
(the database is new, and did not give it); and a fragment that tells what it has may have nothing
of so many in a row. What tells of more is passed over."""

EPOCHS_MAX = 1 << 40
"""Of what a fragment tells that it has, no more are believed: to read one takes longer than the
microsecond that would make it twelve days. So a forged word leaves epochs to give out."""


@dataclass(frozen=True, slots=True)
class Done:
    """What is done, on the track; the two are apart."""

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
        next_: int = 0,
        spans: Iterable[Span] = (),
        done: Done = Done(),
    ) -> None:
        """``fragments``: how many the run's layout has; 0: not known yet, so nothing is done.

        ``next_``: the place on the track from which on all is untouched.
        """
        assert sequences > 0
        self.track, self._all = Track(sequences), (1 << fragments) - 1
        self.next = next_
        self.spans = placed(spans)
        self.done = done

    @property
    def epoch(self) -> int:
        """The lowest epoch of which not everything is done."""
        return self.track.epoch(self.spans[0].range.start if self.spans else self.next)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is done, nor can be: nobody holds any."""
        return self.done == Done() and all(s.is_free and not s.covered for s in self.spans)

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
            begins_to_settle = span.until is None or (version and not span.gone)
            if begins_to_settle and span.life and _is_gone(span.life, alive):
                settles = replace(span, until=now + settle_s, gone=version)
                self.spans[at], changed = settles, True
            elif span.until is None:
                continue
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
        return newest, tuple(self.track.epochs(joined(span.range for span in mine)))

    def grant(self, life: Life, number: int, want: int, others: int = 0) -> Ranges:
        """Give out up to so many sequences, the least trained first, if the life may hold more.

        ``others``: spans of the run that are not here.
        """
        mine = [span.range for span in self.spans if span.life and span.life[:1] == life[:1]]
        most = pieces(sum(map(self.track.pieces, mine)), len(self.spans) + others)
        free = [span.range for span in self.spans if span.is_free]
        untouched = Range(0, self.next, LENGTH_MAX)
        given: list[Range] = []
        for piece in islice(self.track.epochs([*free, untouched]), most):
            if want <= 0:
                break
            epoch, start, stop = piece
            given.append(Range(epoch, start, min(stop, start + want)))
            want -= count(given[-1:])
        ranges = self.track.along(given, LENGTH_MAX)
        self._touch(ranges)
        for at in cut(self.spans, ranges):
            self.spans[at] = replace(self.spans[at], life=life, grant=number)
        self.spans = tidied(self.spans)
        return tuple(self.track.epochs(ranges))

    def take_back(self, life: Life, ranges: Ranges) -> int:
        """Free what a life says that it will push nothing of; how many sequences those were."""
        if not ranges:
            return 0
        freed = 0
        for at in cut(self.spans, self.track.along(ranges, self._last())):
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
            ranges = self.track.along(push.data, self._last())
            self._cover(push.fragments, ranges, push.folded, push.life, until)
        self._finish()

    def _cover(
        self, fragments: int, ranges: Ranges, folded: bool, life: Life | None, until: float
    ) -> None:
        self._touch(ranges)
        for at in cut(self.spans, ranges):
            span = self.spans[at]
            new = fragments & ~span.covered
            if span.is_free and new:
                span = replace(span, life=life, until=None if life else until)
            own = span.own
            if span.life and life in (span.life, None):
                own |= fragments if life else new
            covered = span.covered | fragments
            self.spans[at] = replace(span, covered=covered, own=own, folded=span.folded or folded)

    def stands(self, fragments: int, trained: Stretches, excluded: Stretches, until: float) -> None:
        """A fragment (as a bit) says all that it has committed: what it lacks, it has lost.

        Its service may have gone back by a revision, or a synchronous phase has started again. Who
        has read that may push it again, if it is there still: so it settles first, whichever
        fragments have been heard of.
        """
        # What it has epoch after epoch it was given, whatever is known of that here.
        told = reach([*trained, *excluded], self.epoch, EPOCHS_AHEAD_MAX)
        last = self._last(min(told, EPOCHS_MAX))
        last = min(last, self.track.bound(trained), self.track.bound(excluded))
        counted, bad = (self.track.along(one, last) for one in (trained, excluded))
        unheard = Range(0, self.track.size * (last + 1), LENGTH_MAX)  # of that it lacks nothing
        known = joined(counted, bad, (unheard,))
        others = self._all & ~fragments
        was = self.done
        self.done = Done(common(was.trained, known), common(was.excluded, known))
        back = [
            Span(one, covered=others, folded=folded, until=until)
            for before, still, folded in (
                (was.trained, self.done.trained, True),
                (was.excluded, self.done.excluded, False),
            )
            for one in without(before, still)
        ]
        self.spans = placed([*self.spans, *back])
        for at in cut(self.spans, without(joined(span.range for span in self.spans), known)):
            self.spans[at] = self.spans[at].lost(fragments, until)
        self._cover(fragments, counted, True, None, until)
        self._cover(fragments, bad, False, None, until)
        self._finish()

    def _finish(self) -> None:
        """Move what every fragment has committed to what is done; join what is left."""
        full = [span for span in self.spans if self._all and span.covered & self._all == self._all]
        if full:
            trained = [span.range for span in full if span.folded]
            excluded = [span.range for span in full if not span.folded]
            done = self.done
            self.done = Done(joined(done.trained, trained), joined(done.excluded, excluded))
            gone = {span.range for span in full}
            self.spans = [span for span in self.spans if span.range not in gone]
        self.spans = tidied(self.spans)

    def _last(self, until: int = 0) -> int:
        """The last epoch of which we hear: whoever pushes may have told us anything.

        ``until``: the first behind those of which who tells was given something.
        """
        return max(self.track.epoch(self.next), max(self.epoch, until) + EPOCHS_AHEAD_MAX)

    def _touch(self, ranges: Ranges) -> None:
        """Have spans of all up to the end of these."""
        end = ranges[-1].stop if ranges else 0
        if self.next < end:
            self.spans.append(Span(Range(0, self.next, end)))
            self.next = end


def _is_gone(life: Life, alive: Mapping[str, int]) -> bool:
    return alive.get(life.replica) != life.incarnation
