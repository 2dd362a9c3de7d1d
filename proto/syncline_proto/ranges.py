"""Sequences of a dataset, by ranges of their positions in the order of an epoch; sets of those.

A dataset of N sequences is walked epoch by epoch, each in an order of its own. Position p of an
epoch is the p-th of that order, from 0 to N - 1. Who reads what, what a push was trained on, and
what has been trained so far are sets of (epoch, position), kept as few ranges.

Pure. ``Ranges`` are sorted, and neighbours in them neither overlap nor touch: so equal sets are
equal values. Everything here takes and returns such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from syncline_proto.errors import InvalidRequest

POSITION_MAX = (1 << 53) - 1
"""Of epochs and positions: every reader of JSON keeps so much exactly."""

RANGES_MAX = 256
"""In one push, or one call: what a replica reads comes in few pieces."""

Place = Annotated[int, Field(ge=0, le=POSITION_MAX)]


class Range(NamedTuple):
    """Positions ``start`` to ``stop`` - 1 of an epoch; in JSON [epoch, start, stop]."""

    epoch: Place
    start: Place
    stop: Place


Ranges = tuple[Range, ...]

NOTHING: Ranges = ()


def joined(*sets: Iterable[Range]) -> Ranges:
    """Return the union; what is given need not be sorted, and may overlap."""
    found: list[Range] = []
    for epoch, start, stop in sorted(one for ranges in sets for one in ranges):
        if found and found[-1].epoch == epoch and start <= found[-1].stop:
            found[-1] = Range(epoch, found[-1].start, max(found[-1].stop, stop))
        elif start < stop:
            found.append(Range(epoch, start, stop))
    return tuple(found)


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return what of ``ranges`` is not in ``others``."""
    left: list[Range] = []
    coming = iter(others)
    other = next(coming, None)
    for epoch, start, stop in ranges:
        while other is not None and (other.epoch, other.stop) <= (epoch, start):
            other = next(coming, None)
        while other is not None and (other.epoch, other.start) < (epoch, stop):
            if start < other.start:
                left.append(Range(epoch, start, other.start))
            start = other.stop
            if start >= stop:
                break  # the next of ``ranges`` may meet it, too
            other = next(coming, None)
        if start < stop:
            left.append(Range(epoch, start, stop))
    return tuple(left)


def common(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the intersection."""
    return without(ranges, without(ranges, others))


def count(ranges: Iterable[Range]) -> int:
    """Return the number of sequences in ranges that do not overlap."""
    return sum(stop - start for _, start, stop in ranges)


def split(ranges: Ranges, first: int) -> tuple[Ranges, Ranges]:
    """Return the ``first`` so many sequences, or all there are, and the rest."""
    taken: list[Range] = []
    for number, (epoch, start, stop) in enumerate(ranges):
        if first < stop - start:
            head = (Range(epoch, start, start + first),) if first else ()
            rest = (Range(epoch, start + first, stop), *ranges[number + 1 :])
            return (*taken, *head), rest
        taken.append(ranges[number])
        first -= stop - start
    return tuple(taken), NOTHING


def check_count(count: int, where: str) -> None:
    """See that ranges that came from outside are few, before anything is made of them.

    Raises:
        InvalidRequest: they are not; ``where`` names the field.
    """
    if count > RANGES_MAX:
        raise InvalidRequest(f"{where}: {count} ranges are over {RANGES_MAX}.")


def check(ranges: Sequence[Range], where: str) -> None:
    """See that ranges that came from outside are few, sorted, and apart.

    Raises:
        InvalidRequest: they are not; ``where`` names the field.
    """
    check_count(len(ranges), where)
    before = (-1, 0)
    for number, (epoch, start, stop) in enumerate(ranges):
        if not (0 <= epoch <= POSITION_MAX and 0 <= start < stop <= POSITION_MAX):
            raise InvalidRequest(
                f"{where}.{number}: [{start}, {stop}) of epoch {epoch} is no range; start must be "
                f"below stop, and no number over {POSITION_MAX}."
            )
        if (epoch, start) <= before:
            raise InvalidRequest(f"{where}.{number}: ranges must be sorted, with gaps in between.")
        before = (epoch, stop)
