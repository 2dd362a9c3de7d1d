"""FSDP2 that keeps a secondary copy of what it gathers, for the backward pass (ZeRO++'s hpZ).

A merge writes the shards behind FSDP2's back; a copy from before it must never be used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.composed import Way, in_ranks

WAYS = {
    "flat": Way(),
    "by-hand": Way(inside=False),
    "pairs": Way(reshard=2),
    "pairs-evaluated": Way(reshard=2, evaluate=True),
    "pairs-poisoned": Way(reshard=2, evaluate=True, poison="merged"),
    "pairs-left": Way(reshard=2, evaluate=True, poison="left"),
    "kept-poisoned": Way(reshard=False, evaluate=True, poison="merged"),
    "flat-poisoned": Way(evaluate=True, poison="merged"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_no_copy_from_before_a_merge_is_ever_read(cluster: Cluster, tmp_path: Path) -> None:
    """Of four ranks, in pairs; evaluations leave copies behind, which no backward pass drops."""
    left = in_ranks(tmp_path, cluster, 4, WAYS)
    blind = left.pop("pairs-left")
    assert not blind.is_finite, "where nothing is dropped, copies are read: so the poison works"
    for name, trace in left.items():
        assert trace == left["flat"], name
        assert trace.is_finite
