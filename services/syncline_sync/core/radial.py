"""Radial-directional averaging: the mean of the pushes' directions, at the mean of their lengths.

Pushes of many replicas point apart, so that their mean is short: of M orthonormal ones its norm is
1 / sqrt(M). Tensor by tensor this takes the direction of the sum of directions instead, and the
weighted mean of the norms (Decoupled DiLoCo, arXiv 2604.21428), with v_i what push i has of it:

    v = (sum of w_i ||v_i||) / (sum of w_i) * u / ||u|| ;  u = sum of w_i v_i / ||v_i||

The w_i are the penalty's: with equal ones an outlier would set the length. One push is left as it
is. Where directions cancel out there is none: of a u shorter than ``CANCELLED`` of the weights no
more is made, so that its part of v goes to 0 with it. The rest is the plain mean's, in a tensor of
at most ``SHORT`` elements, where pushes do cancel: of one element any two may. In a longer one they
do not by chance; there v is 0, since the mean would need an accumulator of its own.

Embeddings are averaged plainly, as in that paper.

Pure. The accumulator holds u until the round's end; the sums of norms, and those of short tensors,
are this module's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from syncline_proto.codec import Float32, square_sum
from syncline_proto.codec.base import Float64
from syncline_proto.layout import EMBEDDINGS
from syncline_proto.merging import OuterSettings
from syncline_sync.core.merge import Payload, decoded
from syncline_sync.core.record import Kind

CANCELLED = 0.01
"""Of the norm that u has where all directions agree."""

SHORT = 16
"""Elements. Two directions of more do not come to be opposite, within 1 %, by chance."""

FACTOR_MAX = 1e38
"""What would be multiplied by more, for fp32, is so short that it has no direction."""


def is_radial(outer: OuterSettings, fragment: str, kind: Kind) -> bool:
    """Whether pushes of this kind, to the fragment of this name, are folded by directions."""
    is_embedding = fragment.startswith(EMBEDDINGS)
    return outer.average == "radial" and kind is Kind.PSEUDO_GRADIENT and not is_embedding


@dataclass(slots=True)
class Radii:
    """What a round knows of its pushes' lengths, beside the sum of their directions."""

    edges: Sequence[int]
    """Where each tensor begins in the flat vector, and where the last one ends."""
    norms: Float64
    """The sum of w_i ||v_i||, for each tensor."""
    sums: dict[int, Float64]
    """The sum of w_i v_i, for each short tensor."""
    weight: float = 0.0
    """The sum of w_i."""

    @classmethod
    def none(cls, edges: Sequence[int]) -> Radii:
        sizes = [stop - start for start, stop in pairwise(edges)]
        short = {tensor: np.zeros(n) for tensor, n in enumerate(sizes) if n <= SHORT}
        return cls(edges, np.zeros(len(sizes)), short)

    def fold(
        self,
        accumulator: Float32,
        payloads: Sequence[Payload],
        weight: float,
        rescale: float = 1.0,
        *,
        is_first: bool = False,
    ) -> None:
        """Take in a push, as ``merge.fold`` does, by its directions."""
        if is_first:
            accumulator[:] = 0.0
        elif rescale != 1.0:
            accumulator *= np.float32(rescale)
        mine = self._norms(payloads)
        for sum_ in self.sums.values():
            sum_ *= rescale
        has_one = mine * FACTOR_MAX > weight
        factors = np.divide(weight, mine, out=np.zeros_like(mine), where=has_one)
        for tensor, at, values in self._by_tensor(payloads):
            into = accumulator[at : at + values.size]
            into += np.float32(factors[tensor]) * values
            if tensor in self.sums:
                start = at - self.edges[tensor]
                self.sums[tensor][start : start + values.size] += weight * values
        self.norms = self.norms * rescale + weight * mine
        self.weight = self.weight * rescale + weight

    def lengthen(self, accumulator: Float32) -> None:
        """u becomes the sum of w_i times v, which the outer step divides by that sum."""
        least = CANCELLED * self.weight
        for tensor, (start, stop) in enumerate(pairwise(self.edges)):
            mine = accumulator[start:stop]
            norm = float(np.sqrt(square_sum(mine)))
            if max(norm, least) > 0.0:
                mine *= np.float32(self.norms[tensor] / max(norm, least))
            if tensor in self.sums and norm < least:
                mine += ((1.0 - norm / least) * self.sums[tensor]).astype(np.float32)

    def _norms(self, payloads: Sequence[Payload]) -> Float64:
        squares = np.zeros(len(self.edges) - 1)
        for tensor, _, values in self._by_tensor(payloads):
            squares[tensor] += square_sum(values)
        return np.sqrt(squares)

    def _by_tensor(self, payloads: Sequence[Payload]) -> Iterable[tuple[int, int, Float32]]:
        """Values that lie together in one tensor: which, where in the flat vector, and they."""
        for at, values in decoded(payloads):
            tensor = int(np.searchsorted(self.edges, at, side="right")) - 1
            done = 0
            while done < values.size:
                here = min(values.size, self.edges[tensor + 1] - at)
                yield tensor, at + done, values[done:here]
                done, tensor = here, tensor + 1
