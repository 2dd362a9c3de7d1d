"""Who owns which fragment: every one once, evenly, and the same wherever it is asked."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.owners import Seat, ordinal, owners

SIZES = st.lists(st.integers(1, 1 << 26), min_size=1, max_size=40)


def loads(sizes: list[int], whose: tuple[int, ...], shards: int) -> list[int]:
    return [
        sum(size for size, owner in zip(sizes, whose, strict=True) if owner == index)
        for index in range(shards)
    ]


@given(sizes=SIZES, shards=st.integers(1, 50))
def test_nobody_has_more_than_his_share_and_one_fragment(sizes: list[int], shards: int) -> None:
    whose = owners(sizes, shards)
    assert len(whose) == len(sizes) and set(whose) <= set(range(shards))
    largest = max(loads(sizes, whose, shards))
    # List scheduling: the last one that it got went to the least loaded.
    assert largest <= sum(sizes) / shards + max(sizes)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=7), shards=st.integers(1, 3))
def test_the_largest_share_is_within_grahams_bound_of_the_best_cut(
    sizes: list[int], shards: int
) -> None:
    cuts = itertools.product(range(shards), repeat=len(sizes))
    best = min(max(loads(sizes, cut, shards)) for cut in cuts)
    largest = max(loads(sizes, owners(sizes, shards), shards))
    assert 3 * shards * largest <= (4 * shards - 1) * best


def layout(sizes: list[int]) -> Layout:
    return Layout(
        tuple(TensorSpec(f"w{i}", (size,), "float32") for i, size in enumerate(sizes)),
        tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (size,)),)) for i, size in enumerate(sizes)),
    )


@given(sizes=SIZES, shards=st.integers(1, 50))
def test_the_seats_own_every_fragment_once(sizes: list[int], shards: int) -> None:
    owned = [Seat(index, shards).owned(layout(sizes)) for index in range(shards)]
    assert sorted(number for one in owned for number in one) == list(range(len(sizes)))
    assert all(list(one) == sorted(one) for one in owned)


def test_the_rule_is_the_one_that_stores_were_made_by() -> None:
    """Another would give stored fragments to services that do not have them."""
    assert owners([5, 9, 9, 1, 4, 5], 2) == (0, 0, 1, 1, 0, 1)
    assert owners([3, 3], 4) == (0, 1)
    assert owners([1 << 26, 7], 1) == (0, 0)


@pytest.mark.parametrize(
    ("host", "number"),
    [
        ("sync-0", 0),
        ("my-sync-12", 12),
        ("sync-3.sync.syncline.svc", 3),
        ("box", None),
        ("7", None),
    ],
)
def test_the_ordinal_is_at_the_end_of_the_hosts_name(host: str, number: int | None) -> None:
    assert ordinal(host) == number
