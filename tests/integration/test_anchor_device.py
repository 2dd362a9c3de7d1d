"""Wherever a replica's anchors lie, it trains the same, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.composed import EVERY, Way, in_ranks

WAYS = {
    "plain": Way(),
    "narrow": Way(down="bf16"),
    "difference": Way(down="int8", outer=0.5),
    "warm": Way(warmup=EVERY),
    "overlap": Way(overlap=1),
    "eager": Way(overlap=EVERY, eager=True, outer=0.5, down="bf16"),
    "turns.mixed": Way(groups=EVERY, overlap=1, mix=0.25),
}
"""What is done with an anchor, and which type it is of."""


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_trajectory_is_the_same_wherever_anchors_lie(
    cluster: Cluster, tmp_path: Path, count: int
) -> None:
    """Of a model on the CPU, and beside a device that has streams."""
    plain = {f"anchor.{count}.{name}": way for name, way in WAYS.items()}
    beside = {f"{name}.model": replace(way, anchors="model") for name, way in plain.items()}
    there = {f"{name}.there": replace(way, streamed=True) for name, way in beside.items()}
    left = in_ranks(tmp_path, cluster, count, plain | beside | there)
    for name in plain:
        assert left[name].is_finite
        assert left[f"{name}.model"] == left[name], name
        assert left[f"{name}.model.there"] == left[name], name
