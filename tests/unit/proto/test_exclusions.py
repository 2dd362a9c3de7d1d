"""Exclusions are worth a word when they begin and when they are over."""

from __future__ import annotations

from syncline_proto.exclusions import Exclusions


def test_who_is_excluded_in_several_fragments_counts_again_with_the_last() -> None:
    one = Exclusions()
    assert one.excluded("a", 1, 0)
    assert not one.excluded("a", 1, 1)
    assert not one.excluded("a", 1, 0), "of a later round"
    assert one.counted("a", 0) == 0
    assert not one.excluded("a", 1, 1)
    assert one.counted("a", 1) == 4
    assert one.counted("a", 1) == 0, "it has been said"
    assert one.excluded("a", 1, 1), "it begins anew"


def test_each_replica_and_each_life_has_its_own() -> None:
    one = Exclusions()
    assert one.excluded("a", 1, 0)
    assert one.excluded("b", 1, 0)
    assert one.excluded("a", 2, 3), "another life"
    assert one.counted("a", 3) == 1
