"""A run in which nothing counts is told from one whose norms have changed for good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.core.barren import BARREN_MAX, BARREN_TOLD, barren_after, diverged
from syncline_proto.merging import PenaltySettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.detector import Seen, Statistics, closed, inspect

ACCEPTED, ANOMALOUS = pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS
RULES = PenaltySettings()


@pytest.mark.parametrize(
    ("verdicts", "growth", "after"),
    [
        ({ANOMALOUS}, 0, 5),
        ({ANOMALOUS, ACCEPTED}, 0, 0),  # its loop counts no tokens
        ({ANOMALOUS}, 8, 0),  # a revision that this replica passed over had some
        (set(), 0, 4),
    ],
)
def test_a_round_is_barren_where_all_were_excluded(
    verdicts: set[pb.Verdict.ValueType], growth: int, after: int
) -> None:
    assert barren_after(4, verdicts, growth) == after


def test_the_end_says_what_to_do() -> None:
    nan = str(diverged("a does not count: its values are not finite.", non_finite=True))
    assert nan.endswith("(a does not count: its values are not finite); lower optimizer.lr.")
    assert str(diverged("", non_finite=False)) == (
        "Nobody's push counted in 10 rounds in a row; lower optimizer.lr, "
        "or see run.penalty.norm_max."
    )


@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=5), st.integers(0, 30))
def test_a_lasting_change_of_norms_is_never_the_end(changes: list[float], before: int) -> None:
    """The service's real detector: however all norms change, it takes some of them in before."""
    statistics, barren = Statistics(), 0
    for number in range(before + 2 * BARREN_MAX):
        norms = changes if number >= before else [1.0] * len(changes)
        seen = [
            Seen(name, norm, 1, inspect(statistics, RULES, name, norm, 1).bad)
            for name, norm in zip("abcde", norms, strict=False)
        ]
        verdicts = {ANOMALOUS if push.bad else ACCEPTED for push in seen}
        barren = barren_after(barren, verdicts, 0)
        assert barren <= BARREN_TOLD
        statistics, _ = closed(statistics, RULES, seen)
