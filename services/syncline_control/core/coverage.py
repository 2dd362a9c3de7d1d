"""How far a run has come in its data, epoch by epoch. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

from syncline_control.core.ledger import Done, Ledger
from syncline_proto.ranges import Range, Ranges, common, count, joined, without


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
    track = ledger.track
    begun = -(-ledger.next // track.size)
    shown = range(max(0, begun - newest), begun)
    window = (Range(0, shown.start * track.size, shown.stop * track.size),)

    def by_epoch(ranges: Ranges) -> dict[int, int]:
        found: dict[int, int] = defaultdict(int)
        for one in track.epochs(common(ranges, window)):
            found[one.epoch] += count((one,))
        return found

    trained, excluded = by_epoch(ledger.done.trained), by_epoch(ledger.done.excluded)
    leased = by_epoch(held(ledger))
    found: list[EpochCounts] = []
    for epoch in shown:
        parts = (trained[epoch], excluded[epoch], leased[epoch])
        found.append(EpochCounts(epoch, *parts, track.size - sum(parts)))
    return found


def held(ledger: Ledger) -> Ranges:
    """What is leased, or settles, on the track."""
    return joined(span.range for span in ledger.spans if not span.is_free)


def finished(ledger: Ledger, before: Done) -> list[Finished]:
    """The epochs of which all is done, and was not before."""
    track, done = ledger.track, ledger.done
    now, then = (track.wholes(joined(one.trained, one.excluded)) for one in (done, before))
    windows = tuple(
        Range(0, epoch * track.size, until * track.size) for _, epoch, until in without(now, then)
    )
    trained, excluded = (_within(one, windows) for one in (done.trained, done.excluded))
    return [
        Finished(start // track.size, stop // track.size, trained[start], excluded[start])
        for _, start, stop in windows
    ]


def _within(ranges: Ranges, windows: Ranges) -> dict[int, int]:
    """How many of these are in each window, by where that starts; there may be thousands."""
    found: dict[int, int] = defaultdict(int)
    starts = [window.start for window in windows]
    for one in common(ranges, windows):
        found[starts[bisect_right(starts, one.start) - 1]] += count((one,))
    return found
