"""A replica that comes late for rounds that do not wait for it: it goes on, and its steps count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.by_hand import ByHand
from syncline_testing.cluster import Cluster
from syncline_testing.readers import Reader, told
from syncline_testing.replicas import BATCH, QUICK, STEP_TOKENS, Trial, published
from syncline_testing.scraped import lateness
from syncline_testing.waiting import wait_until

FRAGMENTS = range(4)
ALONE: dict[str, Any] = {
    **QUICK,
    "strategy": "local-sgd",
    "expected_replicas": 2,
    "quorum": 1,
    "timeouts": {"lease": 30.0, "round_deadline": 60.0},
}
"""The first round has both; any other closes with whoever pushes in time."""


def goes_on_to(other: ByHand, revision: int) -> None:
    """A round of every fragment, which the other one closes."""
    for fragment in FRAGMENTS:
        other.push(fragment, revision - 1)
        other.published(fragment, revision)


def contributions(other: ByHand, fragment: int, revision: int) -> dict[tuple[str, int], float]:
    """Whose pushes a revision holds, with their age and weight."""
    found = other.published(fragment, revision).contributions
    assert {c.verdict for c in found} == {pb.VERDICT_ACCEPTED}
    return {(c.replica, c.age): c.weight for c in found}


def came_late(trial: Trial, other: ByHand) -> None:
    """The trial trains from revision 1 to its push while the other one goes on to 2."""
    trial.step(4)
    goes_on_to(other, 1)
    trial.step(1)
    goes_on_to(other, 2)
    trial.step(3)


def test_a_late_push_counts_with_its_age_and_costs_no_wait(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "late", 1, settings=ALONE)
    trial.replica.start()
    with ByHand(cluster, "late") as other:
        came_late(trial, other)
        anchor, revision = published(cluster.sync_address, "late")
        assert revision == 2  # the other one pushes zeros, so it is revision 1, too
        pushed = trial.parameters()
        trial.step(1)
        assert trial.replica.revision == 2, "nobody else has pushed, and it has gone on"
        stats = trial.replica.stats
        assert (stats.stale, stats.aged, stats.last_age) == (0, len(FRAGMENTS), 1)
        assert lateness(trial.replica) == {"aged_pushes_total": len(FRAGMENTS), "last_age": 1}
        goes_on_to(other, 3)
        kept = 2**-0.5 / 2
        for fragment in FRAGMENTS:
            inside = contributions(other, fragment, 3)
            assert inside == pytest.approx({("replica-1", 1): kept, ("by-hand", 0): 0.5})
        values, _ = published(cluster.sync_address, "late")
        for name, value in pushed.items():
            due = anchor[name] - kept * (anchor[name] - value.numpy())
            assert np.allclose(values[name], due, rtol=0, atol=1e-6), name
        trial.step(3)
        trial.replica.close()

    def is_told() -> bool:
        pushes = (c for r in cluster.get("/runs/late/rounds") for c in r["contributions"])
        return ("replica-1", 1) in {(c["replica"], c["age"]) for c in pushes}

    wait_until(is_told, 20, "the control plane knows of its age")
    assert trial.replica.committed_tokens == (4 + 4 + 3 * 1) * STEP_TOKENS


def came_late_and_was_forgotten(cluster: Cluster, trial: Trial, other: ByHand) -> None:
    """Its push was accepted for a round that its service loses, with all that is folded of it."""
    came_late(trial, other)
    trial.step(1)
    assert trial.replica.revision == 2
    cluster.sync.kill()
    cluster.sync.start()


@pytest.mark.long
def test_a_late_push_that_a_service_forgets_is_sent_again(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "forgotten", 1, settings=ALONE)
    trial.replica.start()
    with ByHand(cluster, "forgotten") as other:
        came_late_and_was_forgotten(cluster, trial, other)
        trial.step(4)  # pushes, in time, and closes the round
        wait_until(lambda: trial.replica.revision == 3, 30, "it has gone on")
        for fragment in FRAGMENTS:
            assert contributions(other, fragment, 3) == {("replica-1", 0): 1.0}
        goes_on_to(other, 4)
        for fragment in FRAGMENTS:
            assert set(contributions(other, fragment, 4)) == {("replica-1", 2), ("by-hand", 0)}
        goes_on_to(other, 5)
        for fragment in FRAGMENTS:
            assert set(contributions(other, fragment, 5)) == {("by-hand", 0)}, "once"
        trial.replica.close()


@pytest.mark.long
def test_data_of_a_push_that_is_forgotten_and_too_old_goes_into_the_next(cluster: Cluster) -> None:
    reader = Reader(cluster.control_url, "too-old", 1, settings=ALONE)
    reader.replica.start()
    with ByHand(cluster, "too-old") as other:
        came_late_and_was_forgotten(cluster, reader, other)
        goes_on_to(other, 3)
        goes_on_to(other, 4)  # from here the forgotten one is too old
        reader.step(4)
        goes_on_to(other, 5)
        reader.step(4)
        goes_on_to(other, 6)
        assert told(cluster, "too-old", 16 * BATCH)["trained"] == 16 * BATCH, "all that was pushed"
        reader.replica.close()
