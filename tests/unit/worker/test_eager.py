"""Eager updates: a replica is where an outer optimizer of its own would have taken it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from syncline.anchors import Anchors
from syncline.carrier import Direct
from syncline.core.agreement import Answer
from syncline.core.eager import ahead, echo_after
from syncline.eager import Eager
from syncline.hooks import Hooks
from syncline.layout import outline
from syncline.pulled import Pulled
from syncline.push import Outcome
from syncline.ranks import Ranks
from syncline.scratch import Scratch
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb

SIZE = 16


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("replicas", [1, 2, 5])
@given(seed=st.integers(0, 2**32 - 1), rounds=st.integers(1, 12))
def test_it_is_the_papers_own_outer_step(replicas: int, mu: float, seed: int, rounds: int) -> None:
    """2502.12996: each replica takes Nesterov steps with mean(t-1) + (D(t) - D(t-1)) / M."""
    rng, lr, share = np.random.default_rng(seed), 0.7, 1.0 / replicas
    theirs, theirs_v = np.zeros(SIZE), np.zeros(SIZE)  # the paper's, of one replica
    published, published_v = np.zeros(SIZE), np.zeros(SIZE)
    echo, last, mean = np.zeros(SIZE, np.float32), np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(rounds):
        delta = rng.standard_normal(SIZE).astype(np.float32)
        published_v = mu * published_v + mean  # of the round before, which has just come
        published = published - lr * (mean + mu * published_v)
        eager = mean + share * (delta - last)
        theirs_v = mu * theirs_v + eager
        theirs = theirs - lr * (eager + mu * theirs_v)
        ours = published - ahead(delta, echo, share, lr, mu)
        echo_after(delta, echo, share, mu)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
        others = rng.standard_normal((replicas - 1, SIZE))
        mean, last = (delta + others.sum(axis=0)) / replicas, delta


def test_alone_with_lr_1_it_stays_where_it_is() -> None:
    anchor = np.array([1.0, -3.0, 0.0], np.float32)
    current = np.array([0.5, -3.25, 2.0], np.float32)
    echo = np.zeros(3, np.float32)
    for _ in range(3):
        assert np.array_equal(anchor - ahead(anchor - current, echo, 1.0, 1.0, 0.0), current)
        echo_after(anchor - current, echo, 1.0, 0.0)
    assert not echo.any()


def test_its_share_is_of_those_whose_pushes_counted_in_the_round_before() -> None:
    """Until a round has told, of those that are expected."""
    layer = nn.Linear(7, 5)
    described = outline(layer, Ranks()).cut()
    anchors, hooks = Anchors(described.shards, Direct(Scratch())), Hooks(layer, described)
    how = {"sync_every": 4, "overlap_steps": 4, "overlap_eager": True, "expected_replicas": 4}
    eager = Eager(anchors, hooks, RunSettings.model_validate({"strategy": "local-sgd", **how}))
    header = pb.PullHeader(revision=0, codec=pb.CODEC_FP32)
    anchor = np.arange(35, dtype=np.float32)
    anchors.adopt(0, anchor.copy(), header)

    def share() -> float:
        """Of a push that went down by 1 everywhere, how much the model is left with."""
        eager.clear()
        eager.move(0, anchor - 1)
        (one,) = {*(anchor - anchors.current(0).here()).tolist()}
        return one

    def see(*verdicts: pb.Verdict.ValueType) -> None:
        told = pb.PullHeader(contributions=[pb.Contribution(verdict=one) for one in verdicts])
        pulled = Pulled(header=told, values=anchor, published_s=0.0)
        eager.see(0, Outcome(answer=Answer.MERGED, pulled=pulled))

    assert share() == 1 / 4
    see(pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS, pb.VERDICT_ACCEPTED)
    assert share() == 1 / 2
    see(pb.VERDICT_ANOMALOUS)
    assert share() == 1 / 2, "nobody counted: as before"
    see(pb.VERDICT_ACCEPTED)
    assert share() == 1
