"""What becomes of a push under way where the model goes back behind it, or is asked meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    Trial,
    batch,
    joined,
    loss_of,
    published,
)

ALONE = {**QUICK, "strategy": "local-sgd", "min_replicas": 1, "sync_every": 4}


def test_what_is_trained_after_a_heal_stays_when_an_older_push_lands(cluster: Cluster) -> None:
    """Its tokens are pushed with it, so the model must have it."""
    how = {**ALONE, "overlap_steps": 4}
    trial = Trial(cluster.control_url, "healed", 0, settings=how)
    with joined(trial):
        session: Any = trial.replica._session
        rounds = session._rounds
        trial.step(4)
        assert rounds.are_pending, "the round is under way"
        rounds._is_sick = True  # as where another fragment's values were not finite
        trial.step(1)
        healed = trial.parameters()
        trial.step(2)
        since = {name: p - healed[name] for name, p in trial.parameters().items()}
        trial.replica.finish()
        values, _ = published(cluster.sync_address, "healed")
        for name, p in trial.parameters().items():
            expected = torch.from_numpy(values[name]) + since[name]
            assert since[name].any(), name
            torch.testing.assert_close(p, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("groups", [2, 10])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_reference_pass_within_a_step_leaves_it_its_parameters(
    cluster: Cluster, groups: int, rounds: int
) -> None:
    """The run's end may be learnt in it, and what its backward needs is not written then."""
    budget = rounds * 4 * STEP_TOKENS
    how = {**ALONE, "overlap_steps": 2, "fragment_groups": groups, "token_budget": budget}
    trial = Trial(cluster.control_url, f"refer-{groups}-{rounds}", 0, settings=how)
    replica, model = trial.replica, trial.model
    with joined(trial):
        while not replica.done:
            tokens = batch(0, replica.inner_step)
            replica.count_tokens(STEP_TOKENS)
            loss = loss_of(model, tokens)
            with torch.no_grad():
                loss_of(model, tokens)
            loss.backward()
            trial.optimizer.step()
            trial.optimizer.zero_grad()
    assert replica.committed_tokens >= budget
