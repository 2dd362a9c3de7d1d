"""How far a run has come in its data, epoch by epoch. Pure."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from syncline_control.core.ledger import Done, Ledger
from syncline_proto.ranges import Ranges, joined, without


class EpochCounts(NamedTuple):
    """Sequences of an epoch, by what has become of them; together they are all of it."""

    epoch: int
    trained: int
    excluded: int
    leased: int
    """To somebody who is there, or is gone, and it settles."""
    free: int


class Finished(NamedTuple):
    """Epochs in a row, up to ``until``, of which all is done."""

    epoch: int
    until: int
    trained: int
    excluded: int


def counts(ledger: Ledger, newest: int) -> list[EpochCounts]:
    """Count the newest epochs that anything was given out of, the first one first."""
    size, done = ledger.track.size, ledger.done
    begun = -(-ledger.next // size)
    kinds = [_Sums(ranges) for ranges in (done.trained, done.excluded, held(ledger))]
    found: list[EpochCounts] = []
    for epoch in range(max(0, begun - newest), begun):
        ends = epoch * size, (epoch + 1) * size
        trained, excluded, leased = (kind.between(*ends) for kind in kinds)
        free = size - trained - excluded - leased
        found.append(EpochCounts(epoch, trained, excluded, leased, free))
    return found


def held(ledger: Ledger) -> Ranges:
    """What is leased, or settles, on the track."""
    return joined(span.range for span in ledger.spans if not span.is_free)


def finished(ledger: Ledger, before: Done) -> list[Finished]:
    """The epochs of which all is done, and was not before."""
    track, done = ledger.track, ledger.done
    now, then = (track.wholes(joined(one.trained, one.excluded)) for one in (done, before))
    trained, excluded = _Sums(done.trained), _Sums(done.excluded)
    found: list[Finished] = []
    for _, epoch, until in without(now, then):
        ends = epoch * track.size, until * track.size
        found.append(Finished(epoch, until, trained.between(*ends), excluded.between(*ends)))
    return found


class _Sums:
    """How many sequences of ranges of the track lie where; asked of very many places."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._starts = [one.start for one in ranges]
        self._before = [0, *accumulate(stop - start for _, start, stop in ranges)]

    def between(self, start: int, stop: int) -> int:
        return self._below(stop) - self._below(start)

    def _below(self, place: int) -> int:
        at = bisect_left(self._starts, place)
        behind = max(0, self._ranges[at - 1].stop - place) if at else 0
        return self._before[at] - behind
