"""Which points of a long curve to keep so that it still looks the same.

Pure. Points are picked nearest to an even grid, so however often a curve is thinned as it
grows, its old part is never coarser than one step of the grid over the whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


def thinned(xs: Sequence[int], keep: int) -> list[int]:
    """Return the indices of at most ``keep`` points, ascending, first and last among them.

    Every point that is dropped lies within one grid step, (last - first) / (keep - 1), of one
    that is kept.

    Args:
        xs: where the points lie, in the order in which they came; a step back (a replica that
            started again) counts as standing still.
        keep: at least 2.
    """
    if len(xs) <= keep:
        return list(range(len(xs)))
    rising = list(accumulate(xs, max))
    first, last = rising[0], rising[-1]
    if first == last:
        return [i * (len(xs) - 1) // (keep - 1) for i in range(keep)]
    step = (last - first) / (keep - 1)
    kept = {0, len(xs) - 1}
    for i in range(1, keep - 1):
        kept.add(_nearest(rising, first + i * step))
    return sorted(kept)


def _nearest(xs: Sequence[int], x: float) -> int:
    """The index of the value nearest to ``x`` in a rising sequence that ends at or after it."""
    right = min(bisect_left(xs, x), len(xs) - 1)
    if right and x - xs[right - 1] < xs[right] - x:
        return right - 1
    return right
