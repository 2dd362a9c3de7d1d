"""Eager updates: a replica is where an outer optimizer of its own would have taken it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.core.eager import ahead, echo_after

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
