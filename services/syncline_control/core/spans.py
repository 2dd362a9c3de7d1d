"""Sequences in a row that fare alike: the spans that a ledger is made of, cut and joined.

Pure. A list of them is in order, and they are apart. All ranges here are on the track (``track``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from syncline_proto.ranges import Range


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
    own: int = 0
    """Those of which the push was ``life``'s, or may have been; others have had them before it."""
    folded: bool = False
    """One of those pushes counted."""
    until: float | None = None
    """When time frees them, unless they are done by then; None: they do not settle."""
    gone: int = 0
    """The version of the membership as of which ``life`` is gone; 0: none that is known."""

    @property
    def is_free(self) -> bool:
        return self.life is None and self.until is None

    def freed(self) -> Span:
        """Nobody's; fragments that have it, of a push that others never will, do have it."""
        return Span(self.range, covered=self.covered, folded=self.folded)

    def lost(self, fragments: int, until: float) -> Span:
        """Fragments (as bits) do not have it any more.

        Whose push that was may take it for done, and name it in no other: so it settles.
        """
        settles = self.until is None and self.own & fragments
        return replace(
            self,
            covered=self.covered & ~fragments,
            own=self.own & ~fragments,
            until=until if settles else self.until,
        )


def placed(spans: Iterable[Span]) -> list[Span]:
    """In order."""
    return sorted(spans, key=_start)


def cut(spans: list[Span], ranges: Iterable[Range]) -> list[int]:
    """Cut ``spans`` so that each lies inside ``ranges`` or outside; where those inside are."""
    inside: list[int] = []
    for _, start, stop in ranges:
        at = bisect_left(spans, start, key=_start)
        if at and spans[at - 1].range.stop > start:
            _split(spans, at - 1, start)
        while at < len(spans) and spans[at].range.start < stop:
            if spans[at].range.stop > stop:
                _split(spans, at, stop)
            inside.append(at)
            at += 1
    return inside


def tidied(spans: Sequence[Span]) -> list[Span]:
    """With neighbours that fare alike joined."""
    tidy: list[Span] = []
    for span in spans:
        if tidy and _fare_alike(tidy[-1], span):
            epoch, start, _ = tidy[-1].range
            span = replace(span, range=Range(epoch, start, span.range.stop))
            tidy.pop()
        tidy.append(span)
    return tidy


def _start(span: Span) -> int:
    return span.range.start


def _split(spans: list[Span], at: int, where: int) -> None:
    """Cut one span in two."""
    span = spans[at]
    epoch, start, stop = span.range
    spans[at : at + 1] = [
        replace(span, range=Range(epoch, start, where)),
        replace(span, range=Range(epoch, where, stop)),
    ]


def _fare_alike(one: Span, other: Span) -> bool:
    """Whether two spans are one that was cut."""
    return (
        one.range.stop == other.range.start
        and (one.life, one.grant, one.until) == (other.life, other.grant, other.until)
        and (one.gone, one.covered, one.own, one.folded)
        == (other.gone, other.covered, other.own, other.folded)
    )
