"""Barren rounds, in which nobody's push counted: how many in a row, and when that is the end.

Pure. Three in a row are legal: by then the detector has learnt a lasting change of norms anew.
More of them mean values that are not finite, or a limit that nobody keeps; tokens stand still, so
a run of nothing else would never reach its budget. All replicas count the same headers.
"""

from __future__ import annotations

from collections.abc import Collection

from syncline_proto.errors import TrainingDiverged
from syncline_proto.v1 import sync_pb2 as pb

BARREN_TOLD = 3
"""So many in a row are said."""

BARREN_MAX = 10
"""So many in a row end the replica."""


def barren_after(before: int, verdicts: Collection[pb.Verdict.ValueType], growth: int) -> int:
    """Return how many rounds in a row were barren, after one more merge.

    Args:
        before: how many were, up to this merge.
        verdicts: of the pushes that made the merged revision; none says nothing.
        growth: tokens committed since the last merge, by revisions that were passed over, too.
    """
    if growth > 0 or pb.VERDICT_ACCEPTED in verdicts:
        return 0
    return before + bool(verdicts)


def diverged(why: str, non_finite: bool) -> TrainingDiverged:
    """The end of a replica after ``BARREN_MAX``.

    Args:
        why: the service's last sentence on a push of this replica; empty if it said none.
        non_finite: whether that push was not finite.
    """
    so = "lower optimizer.lr" + ("" if non_finite else ", or see run.penalty.norm_max")
    because = f" ({why.rstrip('.')})" if why else ""
    return TrainingDiverged(
        f"Nobody's push counted in {BARREN_MAX} rounds in a row{because}; {so}."
    )
