"""What a training loop may be made of goes on as it would without Syncline, step by step.

Each way trains in a run, and outside of any, where the merges are done by hand: losses and final
parameters are the same bits. What changes no arithmetic also equals the plain way.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.composed import EVERY, Way, beside, in_ranks

ALL = Way(checkpoint="wrapper", compile="aot_eager", bf16=True, parts=2, sum_first=True)
WAYS = {
    "plain": Way(),
    "wrapper": Way(checkpoint="wrapper"),
    "function": Way(checkpoint="function"),
    "reentrant": Way(checkpoint="reentrant"),
    "captured": Way(compile="aot_eager"),
    "captured.whole": Way(compile="aot_eager", compile_whole=True),
    "bf16": Way(bf16=True),
    "muon": Way(optimizer="muon"),
    "parts": Way(parts=3),
    "summed": Way(parts=3, sum_first=True),
    "warm": Way(warmup=EVERY),
    "all": ALL,
    "overlap": Way(overlap=1),
    "all.overlap": replace(ALL, overlap=1),
    "prefetched": Way(prefetch=True),
    "streamed": Way(streamed=True),
    "streamed.prefetched": Way(streamed=True, prefetch=True),
    "streamed.overlap": Way(streamed=True, overlap=1),
}
SAME = {
    *("plain", "wrapper", "function", "reentrant", "captured", "captured.whole"),
    *("prefetched", "streamed", "streamed.prefetched"),
}
"""Of these the arithmetic is the plain way's."""


@pytest.mark.long
def test_every_way_of_two_ranks_is_left_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    left = in_ranks(tmp_path, cluster, 2, beside(WAYS))
    for name in WAYS:
        assert left[name] == left[f"{name}.by-hand"], name
        assert left[name].is_finite
        assert (left[name] == left["plain"]) == (name in SAME), name
        assert bool(left[name].graphs) == bool(WAYS[name].compile), name


EAGER = Way(overlap=EVERY, eager=True)
MIXED = Way(groups=EVERY, overlap=1, mix=0.25)
MERGED = {
    "turns": Way(groups=EVERY),
    "turns.late": Way(groups=EVERY, overlap=1),
    "mixed": Way(overlap=1, mix=0.25),
    "turns.mixed": MIXED,
    "eager": EAGER,
    "eager.momentum": replace(EAGER, outer=0.5),
    "streamed.turns": Way(groups=EVERY, streamed=True),
    "streamed.turns.mixed": replace(MIXED, streamed=True),
    "streamed.eager.momentum": replace(EAGER, outer=0.5, streamed=True),
    "all.turns.mixed": replace(ALL, groups=EVERY, overlap=1, mix=0.25, prefetch=True),
    "all.eager.momentum": replace(ALL, overlap=EVERY, eager=True, outer=0.5, streamed=True),
}


@pytest.mark.long
def test_what_is_merged_in_other_ways_is_as_by_hand(cluster: Cluster, tmp_path: Path) -> None:
    """In turns, mixed and eager: by two ranks, and as beside a GPU.

    A replica that has all of a round, and an outer step of 1, is never off: eager it stands where
    the others do.
    """
    left = in_ranks(tmp_path, cluster, 2, {"as.it.is": Way()} | beside(MERGED))
    for name in MERGED:
        assert left[name] == left[f"{name}.by-hand"], name
        assert left[name].is_finite
        assert (left[name] == left["as.it.is"]) == (name == "eager"), name
        plain = name.removeprefix("streamed.")
        alike = {other for other in MERGED if left[other] == left[name]}
        assert alike <= {plain, f"streamed.{plain}"}, alike


@pytest.mark.long
def test_who_looks_at_parameters_between_steps_changes_nothing_of_streaming(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Fragments are pushed and merged in turns while a loop reads all of them.

    What it has looked at stays gathered, and no merge may leave it so.
    """
    still = Way(groups=EVERY, reshard=False)
    both = {"still": still, "still.late": replace(still, overlap=1)}
    seen = {f"{name}.seen": replace(way, looks=True, poison="merged") for name, way in both.items()}
    ways = both | seen
    left = in_ranks(tmp_path, cluster, 2, ways)
    for name in both:
        assert left[name].is_finite
        assert left[f"{name}.seen"] == left[name], name


@pytest.mark.long
def test_a_model_that_was_compiled_and_called_before_merges_in_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Of one rank, whose code is in one piece: FSDP2's hooks would cut it."""
    way = Way(compile="aot_eager", compile_whole=True, called_before=True, outer=0.5)
    left = in_ranks(tmp_path, cluster, 1, beside({"before": way}))
    assert left["before"] == left["before.by-hand"]
    assert left["before"].graphs


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("what", ["blocks", "whole"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_compiled_model_trains_as_it_would(
    cluster: Cluster, tmp_path: Path, count: int, what: str
) -> None:
    """By the default backend; of two ranks, each of which compiles its own."""
    name, way = f"{what}-{count}", Way(compile="inductor", compile_whole=what == "whole")
    left = in_ranks(tmp_path, cluster, count, beside({name: way}), limit_s=200.0)
    assert left[name] == left[f"{name}.by-hand"]
    assert left[name].graphs
