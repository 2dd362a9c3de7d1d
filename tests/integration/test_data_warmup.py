"""Leased data in the synchronous phase: a step that closes without a replica takes none of its."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from syncline.exchange import Exchange
from syncline.push import Outcome, Push
from syncline_proto.ranges import Ranges, count, joined
from syncline_testing.by_hand import ByHand
from syncline_testing.cluster import Cluster
from syncline_testing.readers import Reader, told
from syncline_testing.replicas import BATCH, QUICK, phases, ranks, together
from syncline_testing.replicas import joined as all_joined
from syncline_testing.waiting import wait_until

FRAGMENTS = 4
EVERY = QUICK["sync_every"]
WARM: dict[str, Any] = {
    **QUICK,
    "min_replicas": 1,
    "warmup_steps": 2,
    "timeouts": {"lease": 30.0, "round_deadline": 60.0},
}
"""The first step of the phase closes with whoever pushes first."""


class Named:
    """What the replicas of this process name, fragment by fragment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pushes: list[tuple[str, Push, Future[Outcome]]] = []
        begin, pushes = Exchange.begin, self._pushes

        def noted(self: Exchange, push: Push) -> Future[Outcome]:
            future = begin(self, push)
            pushes.append((self._identity.replica, push, future))
            return future

        monkeypatch.setattr(Exchange, "begin", noted)

    def inside(self, fragment: int) -> list[Ranges]:
        """By push, what the means and revisions that were published of a fragment have."""
        return [push.data for push, is_in in self._of(fragment) if is_in]

    def left_out(self) -> list[int]:
        """The fragments of the pushes that came late."""
        every = ((f, self._of(f)) for f in range(FRAGMENTS))
        return [f for f, pushes in every for _, is_in in pushes if not is_in]

    def _of(self, fragment: int) -> list[tuple[Push, bool]]:
        found: list[tuple[Push, bool]] = []
        for replica, push, future in self._pushes:
            if push.fragment == fragment and push.data:
                pulled = future.result(20).pulled
                inside = pulled.header.contributions if pulled else ()
                found.append((push, replica in {c.replica for c in inside}))
        return found


def brings_in_the_first_round(reader: Reader) -> None:
    """After the phase, whose end is revision 1."""
    reader.step(EVERY)
    reader.replica.finish()
    assert reader.replica.revision == 2


def is_accounted_for(cluster: Cluster, run: str, named: Named, read: Collection[int]) -> None:
    """What was read is in each fragment once, and trained as the control plane has it."""
    assert len(set(read)) == len(read), "each was leased to one"
    for fragment in range(FRAGMENTS):
        inside = named.inside(fragment)
        assert sum(map(count, inside)) == count(joined(*inside)) == len(read), fragment
    seen = told(cluster, run, len(read))
    assert (seen["trained"], seen["excluded"]) == (len(read), 0)


def test_what_a_step_closed_without_goes_with_the_next_gradient(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, steps = Named(monkeypatch), 2 + EVERY
    a, b = (Reader(cluster.control_url, "without", seed, settings=WARM) for seed in range(2))
    with all_joined(a, b):
        a.step(1)
        b.step(1)  # too late to count: it takes the mean
        together(lambda: a.step(steps - 1), lambda: b.step(steps - 1))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == b.replica.revision == 2
        assert named.left_out() == list(range(FRAGMENTS))
        assert len(a.read) == len(b.read) == steps * BATCH
        is_accounted_for(cluster, "without", named, [*a.read, *b.read])


def test_what_its_last_step_closed_without_goes_with_the_first_round(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, settings = Named(monkeypatch), {**WARM, "warmup_steps": 1}
    reader = Reader(cluster.control_url, "last", 0, settings=settings)
    reader.replica.start()
    with ByHand(cluster, "last") as other:
        for fragment in range(FRAGMENTS):
            other.gradient(fragment, 1)
        reader.step(1)  # takes the mean, and offers what comes of it
        assert reader.replica.revision == 1
        for fragment in range(FRAGMENTS):
            other.push(fragment, 1)
        brings_in_the_first_round(reader)
        assert named.left_out() == list(range(FRAGMENTS))
        assert len(reader.read) == (1 + EVERY) * BATCH
        is_accounted_for(cluster, "last", named, reader.read)
        reader.replica.close()


def test_what_it_closed_without_in_some_fragments_these_name_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = Named(monkeypatch)
    reader = Reader(cluster.control_url, "some", 0, settings=WARM)
    reader.replica.start()
    with ByHand(cluster, "some") as other:
        for fragment in (1, 3):
            other.gradient(fragment, 1)
        reader.step(1)
        for fragment in (1, 3):
            other.gradient(fragment, 2)
        reader.step(1)
        for fragment in (1, 3):
            other.push(fragment, 1)
        brings_in_the_first_round(reader)
        assert named.left_out() == [1, 3]
        assert len(reader.read) == (2 + EVERY) * BATCH
        is_accounted_for(cluster, "some", named, reader.read)
        reader.replica.close()


def test_who_enters_a_phase_anew_names_there_what_the_old_one_closed_without(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in the old one is nobody's again; somebody else may read that."""
    timeouts = {"lease": 1.5, "round_deadline": 2.0}
    settings = {**WARM, "warmup_steps": 3, "timeouts": timeouts}
    a, b = (Reader(cluster.control_url, "anew", seed, settings=settings) for seed in range(2))
    with all_joined(b):
        with all_joined(a):
            a.step(1)
            b.step(1)
            a.step(1)  # waits for b until the deadline, and leaves
        wait_until(lambda: phases(cluster.sync_address, "anew") == {1}, 20, "it starts again")
        named = Named(monkeypatch)
        b.step(1)
        assert (b.replica.inner_step, b.replica.phase) == (1, "warm-up")
        b.step(3 + EVERY)
        b.replica.finish()
        assert b.replica.revision == 2
        is_accounted_for(cluster, "anew", named, b.read)


@pytest.mark.long
def test_all_ranks_name_again_what_it_closed_without(cluster: Cluster, tmp_path: Path) -> None:
    """Where one named other data than the others its push would be refused."""
    steps, some = 1 + EVERY, (1, 3)
    job = {"run": "ranks", "name": "pair", "seed": 3, "steps": steps, "probe": -1, "leased": True}
    settings = {**WARM, "warmup_steps": 1}
    job |= {"control": cluster.control_url, "settings": settings, "after": "closed"}
    with ranks(tmp_path, job, 2) as processes:

        def is_in_it() -> bool:
            answer = cluster.http.get("/runs/ranks/replicas")
            views = answer.json() if answer.is_success else []
            return any(view["progress"]["phase"] == "warm-up" for view in views)

        wait_until(is_in_it, 60, "it is in the phase")
        with ByHand(cluster, "ranks") as other:
            for fragment in some:
                other.gradient(fragment, 1)
            (tmp_path / "closed").touch()
            for fragment in some:
                other.published(fragment, 1)
                other.push(fragment, 1)
            codes = [process.wait(60) for process in processes]
    assert codes == [0, 0], [log.read_text() for log in tmp_path.glob("*.log")]
    read = steps * 2 * BATCH
    assert told(cluster, "ranks", read)["trained"] == read
