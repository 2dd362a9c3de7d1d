"""A plain loop whose replica takes care: it has no line for any of this."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from syncline_testing.careful import Loop, batches
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS
from syncline_testing.sleeping import LEASE_S, sleeps
from syncline_testing.waiting import wait_until

ALONE: dict[str, Any] = {**QUICK, "min_replicas": 1}


def test_a_joiner_begins_with_short_steps_and_keeps_the_rate_that_was_set(
    cluster: Cluster,
) -> None:
    first = Loop(cluster.control_url, "care-ramp", settings=ALONE, name="first", join_ramp_steps=4)
    with first.replica as replica:
        first.pass_over(replica.shard(batches(5)))
    assert first.rates == [0.5] * 5
    late = Loop(cluster.control_url, "care-ramp", name="late", join_ramp_steps=4)
    with late.replica as replica:
        late.pass_over(replica.shard(batches(5)))
    assert late.rates == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert late.optimizer.param_groups[0]["lr"] == 0.5


def test_a_step_that_is_not_finite_moves_nothing_and_three_go_back(cluster: Cluster) -> None:
    loop = Loop(cluster.control_url, "care-odd", settings=ALONE)
    loop.odd_at = (1, 6, 7, 8)  # a round is of four
    with loop.replica as replica, capture_logs() as logs:
        values = loop.pass_over(replica.shard(batches(10)))
    assert replica.inner_step == 6 and replica.committed_tokens == 5 * (STEP_TOKENS + 4)
    assert values[1] == values[2] != values[3]
    assert [log["revision"] for log in logs if log["event"] == "replica.goes_back"] == [1]
    assert values[6] == values[7] == values[8] != values[9], "its step since is forgotten"


@pytest.mark.parametrize("reads", ["shard", "leased"])
def test_a_lease_that_runs_out_begins_another_life_in_the_same_loop(
    cluster: Cluster, reads: str
) -> None:
    """The step in which it is heard is the last of the old life, and nobody's."""
    settings = ALONE | {"sync_every": 100, "timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    loop = Loop(cluster.control_url, f"care-{reads}", settings=settings, name="one")
    replica, steps = loop.replica, 7

    def late(number: int) -> None:
        if number == 2:
            sleeps(cluster, replica)
        if number == steps - 1:
            replica.request_drain()

    loop.at_step = late
    with replica:
        own = replica.shard(batches(steps))
        if reads == "leased":
            own = replica.leased(list(torch.cat(batches(steps))), batch_size=4)
        values = loop.pass_over(own)
    assert len(values) == steps
    assert (replica.incarnation, replica.inner_step) == (2, steps - 3)
    assert values[3] == values[0] != values[2], "the run's, which has no round"
    assert replica.committed_tokens == (steps - 3) * (STEP_TOKENS + 4)
    if reads == "leased":

        def is_told() -> bool:  # what the first life had leased is not
            return cluster.get("/runs/care-leased/data")["trained"] == (steps - 3) * 4

        wait_until(is_told, 20, "what the second life has trained is told")
