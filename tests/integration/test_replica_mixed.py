"""A replica that is late for some fragments of a round and in time for others.

The other replica is driven by hand, fragment by fragment, so that the instant is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from syncline_testing.by_hand import ByHand
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, published
from syncline_testing.waiting import wait_until

RUN = "mixed"
SETTINGS = {**QUICK, "strategy": "local-sgd", "timeouts": {"lease": 20.0, "round_deadline": 60.0}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def test_late_for_some_fragments_it_is_waited_for_and_loses_nothing(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, RUN, 1, settings=SETTINGS)
    trial.replica.start()
    other = ByHand(cluster, RUN)
    fragments = range(len(other.layout.fragments))
    start = trial.parameters()
    for fragment in fragments[1:]:  # nobody is expected yet, so these close at once
        other.push(fragment, base=0)
        other.published(fragment, 1)
    trial.step(4)
    trial.replica.finish()  # in time for the first fragment, and waits for nothing else
    assert trial.replica.stats.stale == len(fragments) - 1
    assert trial.replica.revision == 1
    late = trial.parameters()
    assert any(not torch.equal(late[name], start[name]) for name in late)
    for fragment in fragments:
        other.push(fragment, base=1)
    wait_until(lambda: other.waits_in(fragments), 20, "these rounds wait for whoever came late")
    trial.step(4)
    trial.replica.finish()
    values, revision = published(cluster.sync_address, RUN)
    assert revision == trial.replica.revision == 2
    steps = [
        c.inner_steps
        for fragment in fragments
        for c in other.published(fragment, 2).contributions
        if c.replica != "by-hand"
    ]
    assert steps == [4] + [8] * (len(fragments) - 1)
    for name, value in trial.parameters().items():
        assert torch.equal(value, torch.from_numpy(values[name]))
    trial.replica.close()
    other.channel.close()


@pytest.mark.long
def test_a_fragment_that_is_ahead_sits_one_boundary_out(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, RUN, 1, settings=SETTINGS)
    trial.replica.start()
    other = ByHand(cluster, RUN)
    last = len(other.layout.fragments) - 1
    for base in range(2):
        other.push(last, base=base)
        other.published(last, base + 1)
    trial.step(4)
    trial.replica.finish()  # late for the last fragment only, which is at revision 2
    assert trial.replica.stats.stale == 1
    trial.step(4)
    trial.replica.finish()
    header = other.published(last, 2)
    assert [c.replica for c in header.contributions] == ["by-hand"]
    assert trial.replica.revision == 2  # all in step again, and nothing of the last one pushed
    other.push(last, base=2)
    trial.step(4)
    trial.replica.finish()
    steps = {c.replica: c.inner_steps for c in other.published(last, 3).contributions}
    assert steps == {"by-hand": 4, "replica-1": 12}
    trial.replica.close()
    other.channel.close()
