"""Tensor parallelism on the second axis of a mesh whose first one is FSDP2's, or alone.

A box says what a rank holds, however its tensor came to be cut; what several hold, one sends.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from syncline.layout import tensors_sha256
from syncline_testing.cluster import Cluster
from syncline_testing.composed import EVERY, ROUNDS, Way, beside, in_ranks, train
from syncline_testing.replicas import published, together

ODD = 18
"""Divides by two ranks, and what each has then does not."""


@pytest.mark.long
def test_matrices_that_four_ranks_share_along_two_axes(cluster: Cluster, tmp_path: Path) -> None:
    ways = {"square": Way(tensor_parallel=2), "odd": Way(tensor_parallel=2, hidden=ODD)}
    left = in_ranks(tmp_path, cluster, 4, beside(ways))
    for name in ways:
        assert left[name] == left[f"{name}.by-hand"]


@pytest.mark.long
def test_two_ranks_that_share_all_and_have_parts_of_a_gradient(
    cluster: Cluster, tmp_path: Path
) -> None:
    """In the synchronous phase, too, whose mean is of whole gradients, as each optimizer's are."""
    shared = Way(tensor_parallel=2, sequence=True)
    ways = {
        "sequence": replace(shared, warmup=EVERY),
        "agd": replace(shared, optimizer="agd"),
        "wsam": replace(shared, optimizer="wsam"),
    }
    left = in_ranks(tmp_path, cluster, 2, beside(ways))
    for name, way in ways.items():
        by_hand = left[f"{name}.by-hand"]
        assert left[name] == by_hand
        alone = train(Way(inside=False, optimizer=way.optimizer, warmup=way.warmup), name, "")
        assert by_hand.losses == pytest.approx(alone.losses, rel=1e-5)


def test_replicas_of_any_shape_agree_with_the_service(cluster: Cluster, tmp_path: Path) -> None:
    way = Way(tensor_parallel=2, replicas=3, hidden=ODD)
    acts = [
        lambda: in_ranks(tmp_path, cluster, 4, {"shapes": way})["shapes"],
        lambda: in_ranks(tmp_path, cluster, 2, {"shapes": way})["shapes"],
        lambda: train(replace(way, tensor_parallel=1), "shapes", cluster.control_url, "own", 5),
    ]
    square, pair, own = together(*acts)
    values, revision = published(cluster.sync_address, "shapes")
    assert revision == ROUNDS
    merged = tensors_sha256({name: torch.from_numpy(value) for name, value in values.items()})
    assert square.parameters == pair.parameters == own.parameters == merged
    assert len({square.losses[0], pair.losses[0], own.losses[0]}) > 1
