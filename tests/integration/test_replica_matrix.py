"""Every way to train together: ranks, overlap, codecs, accumulated gradients, all at once."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.matrix import OVERLAP, ROUNDS, settings_of, train
from syncline_testing.replicas import TinyModel
from syncline_testing.warm import warm_ranks

WAYS = list(product((0, OVERLAP), ("bf16", "int8"), (1, 2)))
"""Overlap, codec both ways, micro-batches in a step."""


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)]
)
def test_replicas_agree_with_the_service_after_each_round(
    cluster: Cluster, tmp_path: Path, count: int
) -> None:
    """One of so many ranks, which share the model by FSDP2, beside one of a single rank."""
    ways = [
        {
            "run": f"m{count}-k{overlap}-{codec}-a{parts}",
            "settings": settings_of(overlap, codec),
            "accumulate": parts,
            "ranks": count + 1,
        }
        for overlap, codec, parts in WAYS
    ]
    they_agree(cluster, tmp_path, count, ways)


@pytest.mark.long
def test_ranks_whom_accelerate_prepared_agree_with_the_service(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two of them, with what it makes of DDP and of FSDP2."""
    ways = [
        {"run": kind, "settings": settings_of(0, "fp32"), "accumulate": 1, "ranks": 3}
        | {"prepared": kind}
        for kind in ("ddp", "fsdp2")
    ]
    they_agree(cluster, tmp_path, 2, ways)


def they_agree(cluster: Cluster, tmp_path: Path, count: int, ways: list[dict[str, Any]]) -> None:
    """Train in all ways, as a replica of so many ranks and one of a single rank."""
    where = {"control": cluster.control_url, "sync": cluster.sync_address}
    path = tmp_path / "wide.json"
    path.write_text(json.dumps({**where, "name": "wide", "seed": 3, "ways": ways}))
    logs = [tmp_path / f"wide-{rank}.log" for rank in range(count)]
    program = ("-m", "syncline_testing.matrix", str(path))
    with warm_ranks(*program, count=count, logs=logs) as processes:
        how: dict[str, Any] = {**where, "name": "own", "seed": 5}
        own = {way["run"]: train(TinyModel(5), way, **how) for way in ways}
        codes = [process.wait(60) for process in processes]
    assert codes == [0] * count, [log.read_text() for log in logs]
    wide = json.loads(path.with_suffix(".out.json").read_text())
    for way in ways:
        overlaps = way["settings"]["overlap_steps"] > 0
        for off in (own[way["run"]], wide[way["run"]]):
            assert len(off) == ROUNDS
            # What is moved instead of written is rounded once more; the last is written.
            assert max(off) <= (1e-6 if overlaps else 0.0), way["run"]
            assert off[-1] == 0.0, way["run"]
