"""Where the chunks of a shard that is sent begin and end: pure, whatever is read there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from syncline_proto.spans import Extent, Spans

FEW_SPANS = 1024
"""So many spans are copied one by one, which takes less than a millisecond."""

CUT_SPANS = 1 << 16
"""Of a chunk: with 16 bytes each, 1 MiB for each pull whose turn it is."""


class Cuts(Iterator[Spans]):
    """The spans of each chunk of a shard, in payload order, made when they are drawn."""

    def __init__(self, elements: int, spans: Iterator[Spans]) -> None:
        self.elements = elements
        """Of each chunk but the last, which may have fewer."""
        self._spans = spans

    def __next__(self) -> Spans:
        return next(self._spans)


def chunk_spans(where: Extent, full: int) -> Cuts:
    """Cut a shard into chunks of ``full`` elements but for the last.

    Of fewer where a shard has loops and its spans are short: see ``CUT_SPANS``. Rows without loops
    count for that only where they are more than ``FEW_SPANS``. Each step may be heavy where all
    spans are more than that: draw it in the pool then.
    """
    if where.loops.size and where.span_count > FEW_SPANS:
        lengths, looped = where.rows[:, 1], where.depths > 0
        single = looped.size - np.count_nonzero(looped)
        shortest = int((lengths[looped] if single <= FEW_SPANS else lengths).min())
        elements = min(full, CUT_SPANS * shortest)
        return Cuts(elements, _made(where, elements))
    return Cuts(full, _cut(where.spans(), full))


def _made(where: Extent, full: int) -> Iterator[Spans]:
    """Chunks' spans, each made when it is drawn."""
    for begin in range(0, where.elements, full):
        yield where.between(begin, min(begin + full, where.elements))


def _cut(spans: Spans, full: int) -> Iterator[Spans]:
    """The same of spans that are there already."""
    ends = np.cumsum(spans[:, 1])  # in the payload
    total = int(spans[:, 1].sum())
    # For all chunks at once: to ask numpy for one takes as long.
    begins = np.arange(0, total, full)
    stops = np.minimum(begins + full, total)
    first = np.searchsorted(ends, begins, side="right")
    last = np.searchsorted(ends, stops, side="left")
    skipped = begins - (ends[first] - spans[first, 1])
    beyond = ends[last] - stops
    of_each = (first, last + 1, skipped, beyond)
    for at, end, skip, rest in zip(*(column.tolist() for column in of_each), strict=True):
        here = spans[at:end].copy()
        here[0, 0] += skip
        here[0, 1] -= skip
        here[-1, 1] -= rest
        yield here
