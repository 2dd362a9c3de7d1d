"""Sets of sequences over any number of epochs: epochs that were read alike are said once.

A range is of one epoch. Who walks a small dataset a hundred thousand times has read the same range
of each, all of it; that is one stretch. Nobody need know how long an epoch is for that.

Pure. ``Stretches`` are sorted and apart, as ``Ranges`` are. Neighbouring epochs that have one range
each, and the same, are one stretch; what has more ranges is told epoch by epoch. So equal sets are
equal values, and one range more makes at most ``MADE_MAX`` stretches more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, NamedTuple

from pydantic import Field

from syncline_proto.ranges import POSITION_MAX, Place, Range, joined

MADE_MAX = 3
"""What is before it, what is behind it, and two ranges where there was one."""


class Stretch(NamedTuple):
    """Positions ``start`` to ``stop`` - 1 of each of so many epochs, from ``epoch`` on.

    In JSON [epoch, start, stop, epochs], or as a range where it is of one.
    """

    epoch: Place
    start: Place
    stop: Place
    epochs: Annotated[int, Field(ge=1, le=POSITION_MAX)] = 1

    @property
    def until(self) -> int:
        """The epoch behind the last."""
        return self.epoch + self.epochs


Stretches = tuple[Stretch, ...]


def added(kept: Stretches, *sets: Iterable[Range]) -> Stretches:
    """Return the union; ranges may be in any order, and overlap."""
    new = joined(*sets)
    if not new:
        return kept
    touched = sorted({one.epoch for one in new})
    apart: list[Stretch] = []
    within: list[Range] = []
    for one in kept:
        epoch, start, stop, _ = one
        for at in touched[bisect_left(touched, epoch) : bisect_left(touched, one.until)]:
            within.append(Range(at, start, stop))
            if epoch < at:
                apart.append(Stretch(epoch, start, stop, at - epoch))
            epoch = at + 1
        if epoch < one.until:
            apart.append(Stretch(epoch, start, stop, one.until - epoch))
    return _said_once(sorted([*apart, *(Stretch(*one) for one in joined(new, within))]))


def are_apart(stretches: Iterable[Stretch]) -> bool:
    """Whether what came from outside is sorted, with gaps in between, and each is something."""
    before = Stretch(-1, 0, 0)
    for one in stretches:
        is_behind = one.epoch >= before.until
        if one.epoch == before.epoch:
            is_behind = one.epochs == before.epochs == 1 and one.start > before.stop
        if not is_behind or one.start >= one.stop:
            return False
        before = one
    return True


def _said_once(stretches: list[Stretch]) -> Stretches:
    """With epochs that are alike, and have one range, in one."""
    found: list[Stretch] = []
    has_one = False
    for epoch, of_epoch in groupby(stretches, lambda one: one.epoch):
        first, *more = of_epoch
        last = found[-1] if has_one and not more else None
        if last and (last.until, last.start, last.stop) == (epoch, first.start, first.stop):
            found[-1] = last._replace(epochs=last.epochs + first.epochs)
        else:
            found += (first, *more)
        has_one = not more
    return tuple(found)
