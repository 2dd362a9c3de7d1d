"""A merged pseudo-gradient that points elsewhere than the momentum is turned, tensor by tensor.

Late and uneven pushes lead back and forth across the way that the run goes. HeLoCo (arXiv
2606.00271) corrects the direction of each before the outer step. With D what is merged, m the
momentum, c the cosine between them and

    sure = ||D|| / (||D|| + kappa ||m|| + eps)

    c >= agree        D stays
    0 <= c < agree    D turns towards m and keeps its length:  D = ||D|| x / ||x|| with
                      x = (1 - l) D / ||D|| + l m / ||m|| ;  l = min(rotate (1 - c) sure, 1)
    c < 0             D loses a part of what is against m:  D -= b c ||D|| m / ||m|| with
                      b = min(suppress (-c) sure, suppress_max)

The momentum is made of corrected pushes in turn, so it may herd them: the mean cosine is told.

Pure. Each is a sum of D and m, so one look at the two and one pass do it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from syncline_proto.codec import Float32, square_sum
from syncline_proto.codec.base import PIECE
from syncline_proto.merging import DirectionSettings

EPSILON = 1e-8

FAINT = 1e-30
"""A momentum so much shorter than D says nothing: it is what rounds without a D have left of one.
To make it as long as D would also leave fp32's range."""


def combination(
    length: float, momentum: float, cosine: float, rules: DirectionSettings
) -> tuple[float, float]:
    """(a, b) of the corrected a D + b m; ``length`` is ||D||, ``momentum`` ||m||, both positive."""
    if cosine >= rules.agree:
        return 1.0, 0.0
    sure = length / (length + rules.kappa * momentum + EPSILON)
    if cosine < 0.0:
        part = min(rules.suppress * -cosine * sure, rules.suppress_max)
        return 1.0, -part * cosine * length / momentum
    turn = min(rules.rotate * (1.0 - cosine) * sure, 1.0)
    norm = math.sqrt((1.0 - turn) ** 2 + turn**2 + 2.0 * turn * (1.0 - turn) * cosine)
    return (1.0 - turn) / norm, turn / norm * length / momentum


def correct(
    accumulator: Float32,
    momentum: Float32,
    scale: float,
    edges: Sequence[int],
    rules: DirectionSettings,
) -> float | None:
    """Correct ``accumulator`` in place; the mean cosine of its tensors, None if none has one.

    ``accumulator`` and ``momentum`` are fp32 [numel]; D is ``scale`` times the former, ``edges``
    say where tensors begin and the last one ends. A tensor in which either is 0, or not finite,
    or the momentum ``FAINT``, stays as it is.
    """
    cosines: list[float] = []
    for start, stop in pairwise(edges):
        mine, its = accumulator[start:stop], momentum[start:stop]
        length, other = math.sqrt(square_sum(mine)), math.sqrt(square_sum(its))
        if not (0.0 < length < math.inf and FAINT * length < other < math.inf):
            continue
        cosine = max(-1.0, min(1.0, _product(mine, its) / length / other))
        cosines.append(cosine)
        a, b = combination(length * scale, other, cosine, rules)
        if (a, b) != (1.0, 0.0):
            _combine(mine, its, np.float32(a), np.float32(b / scale))
    return math.fsum(cosines) / len(cosines) if cosines else None


def _product(mine: Float32, its: Float32) -> float:
    """The inner product, in float64."""
    return math.fsum(
        float(mine[at : at + PIECE].astype(np.float64) @ its[at : at + PIECE].astype(np.float64))
        for at in range(0, mine.size, PIECE)
    )


def _combine(mine: Float32, its: Float32, a: np.float32, b: np.float32) -> None:
    for at in range(0, mine.size, PIECE):
        piece = mine[at : at + PIECE]
        piece *= a
        piece += b * its[at : at + PIECE]
