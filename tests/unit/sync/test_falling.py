"""With which revisions a damaged run goes on."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from syncline_sync.core.falling import goals

KEPT = st.lists(
    st.integers(0, 20).flatmap(
        lambda newest: st.tuples(
            st.just(newest), st.sets(st.integers(max(0, newest - 3), newest), min_size=1)
        )
    ),
    min_size=1,
    max_size=6,
)


@given(KEPT)
def test_each_goes_on_with_a_whole_one_and_together_where_that_is_kept(
    kept: list[tuple[int, set[int]]],
) -> None:
    newest = {number: at for number, (at, _) in enumerate(kept)}
    whole = {number: sorted(its, reverse=True) for number, (_, its) in enumerate(kept)}
    to = goals(newest, whole)
    assert all(to[number] in whole[number] for number in newest)
    damaged = [whole[number][0] for number in newest if whole[number][0] < newest[number]]
    if not damaged:
        assert to == newest, "nobody goes back for nothing"
    for number, its in whole.items():
        assert to[number] == its[0] or to[number] == min(damaged)
        if damaged and min(damaged) in its:
            assert to[number] == min(damaged)


def test_one_that_does_not_keep_what_others_go_back_to_stays_where_it_is() -> None:
    assert goals({0: 5, 1: 5, 2: 5}, {0: [4, 3], 1: [5, 4], 2: [5]}) == {0: 4, 1: 4, 2: 5}
