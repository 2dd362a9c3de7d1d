"""A control plane whose database is lost or older than the run: nothing that is trained is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from syncline_control.state import State
from syncline_testing.cluster import Cluster
from syncline_testing.control import Clock, client_of, with_replicas
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, published
from syncline_testing.waiting import wait_until

EVERY = QUICK["sync_every"]


@pytest.mark.long
def test_a_life_whose_number_was_given_before_counts_from_its_first_push(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:

        def life(rounds: int) -> Trial:
            trial = Trial(cluster.control_url, "one", 1, settings=QUICK)
            with joined(trial):
                trial.step(rounds * EVERY)
                trial.replica.finish()
            return trial

        first = life(3)
        assert first.replica.incarnation == 1
        before, revision = published(cluster.sync_address, "one")
        assert revision == 3
        cluster.control.kill()
        for file in tmp_path.glob("control*"):
            if file.suffix != ".log":
                file.unlink()
        cluster.control.start()
        second = life(2)
        assert second.replica.incarnation == 1, "an empty database knows of no life"
        assert second.replica.committed_tokens == 5 * EVERY * STEP_TOKENS
        after, revision = published(cluster.sync_address, "one")
        assert revision == 5
        assert any((after[name] != before[name]).any() for name in after)
        while (view := cluster.get("/runs/one"))["revision"] < 5:
            time.sleep(0.05)
        assert view["committed_tokens"] == 5 * EVERY * STEP_TOKENS


def test_an_empty_database_hears_where_its_runs_stand_and_who_trained_them_comes_back(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        trial = Trial(cluster.control_url, "one", 1, settings=QUICK)
        with joined(trial):
            trial.replica.bear_loss()
            trial.step(3 * EVERY)
            cluster.control.kill()
            for file in tmp_path.glob("control*"):
                if file.suffix != ".log":
                    file.unlink()
            cluster.control.start()
            wait_until(lambda: trial.step().replica.rejoin(), 20, "it has heard of no run")
            # A push that the loss has cut through has some fragments ahead: this evens them out.
            trial.step(EVERY)
            trial.replica.finish()
            _, revision = published(cluster.sync_address, "one")
            assert revision >= 4
            while cluster.get("/runs/one")["revision"] < revision:
                time.sleep(0.05)
            assert cluster.get("/runs/one")["committed_tokens"] == revision * EVERY * STEP_TOKENS
            trial.step(EVERY)
            trial.replica.finish()
        assert published(cluster.sync_address, "one")[1] == revision + 1


@pytest.mark.anyio
async def test_a_new_database_has_no_version_that_the_one_before_has_used(tmp_path: Path) -> None:
    """Else who knows the old one waits for another, with a membership that is no more."""
    clock = Clock()

    async def life(name: str) -> set[int]:
        async with (
            await State.open(str(tmp_path / name), clock=clock) as state,
            client_of(state) as api,
        ):
            seen = {(await api.get("/v1/membership")).json()["version"]}
            for replica in "abcdefgh":
                await with_replicas(api, replica)
                seen.add((await api.get("/v1/membership")).json()["version"])
            return seen

    before = await life("before.db")
    clock.now += 0.5
    after = await life("after.db")
    assert len(before) == len(after) == 9
    assert max(before) < min(after)
