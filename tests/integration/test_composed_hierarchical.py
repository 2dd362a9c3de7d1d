"""FSDP2 that keeps a secondary copy of what it gathers, for the backward pass (ZeRO++'s hpZ).

A merge writes the shards behind FSDP2's back; a copy from before it must never be used again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.composed import Way, beside, in_ranks

POISONED = Way(reshard=2, evaluate=True, poison="merged")
FLAT = {
    "flat": Way(),
    "pairs": Way(reshard=2),
    "pairs.poisoned": POISONED,
    "pairs.recomputed": replace(POISONED, checkpoint="wrapper"),
    "pairs.prefetched": replace(POISONED, prefetch=True),
    "kept.poisoned": replace(POISONED, reshard=False),
}
OVERLAPPED = {
    "overlap": Way(overlap=1),
    "overlap.poisoned": replace(POISONED, overlap=1),
}
MOVED = {
    "wsam": Way(optimizer="wsam"),
    "wsam.poisoned": replace(POISONED, optimizer="wsam"),
    "wsam.kept.poisoned": replace(POISONED, optimizer="wsam", reshard=False),
}
"""By an optimizer that writes into the shards between two gradients of a step."""
ALL = {
    "all": replace(
        POISONED,
        overlap=1,
        checkpoint="wrapper",
        compile="aot_eager",
        bf16=True,
        parts=2,
        sum_first=True,
    )
}
BLIND = {"blind": replace(POISONED, poison="left")}


@pytest.mark.long
def test_no_copy_from_before_a_merge_is_ever_read(cluster: Cluster, tmp_path: Path) -> None:
    """Of four ranks, in pairs; evaluations leave copies behind, which no backward pass drops."""
    left = in_ranks(tmp_path, cluster, 4, FLAT | OVERLAPPED | beside(ALL) | BLIND)
    for same in (FLAT, OVERLAPPED):
        first, *others = (left[name] for name in same)
        assert first.is_finite
        assert others == [first] * len(others)
    assert left["all"].is_finite and left["all"] == left["all.by-hand"], "with all else on top"
    assert not left["blind"].is_finite, "where nothing is dropped copies are read: poison works"


@pytest.mark.long
def test_no_copy_is_read_where_an_optimizer_has_moved_the_shards(
    cluster: Cluster, tmp_path: Path
) -> None:
    left = in_ranks(tmp_path, cluster, 4, MOVED)
    first, *others = left.values()
    assert first.is_finite
    assert others == [first] * len(others)
