"""With which revisions a run ends, by what the newest one of the last fragment tells."""

from __future__ import annotations

import pytest

from syncline.core.goal import goal


@pytest.mark.parametrize(
    ("told", "end"),
    [
        ((4, 9, 3, None, 2), None),
        ((4, 9, 3, 10, 2), None),
        ((4, 10, 3, 10, 1), 4),
        ((4, 10, 3, 10, 2), 5),
        ((5, 13, 3, 10, 2), 5),
        ((5, 10, 0, 10, 2), 5),  # nothing has counted in the round after it
        ((1, 10, 0, 10, 2), 1),  # the synchronous phase has spent it
    ],
)
def test_the_end_is_known_with_the_revision_that_holds_the_budget(
    told: tuple[int, int, int, int | None, int], end: int | None
) -> None:
    assert goal(*told) == end
