"""Rounds by time: replicas of different speed are in the same rounds, each with its own steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    Trial,
    joined,
    published,
    ranks,
    together,
)
from syncline_testing.waiting import wait_until

FAST_S, SLOW_S = 0.01, 0.06
BUDGET = 150 * STEP_TOKENS
TIMED: dict[str, Any] = {
    **QUICK,
    "strategy": "a-edit",
    "sync_seconds": 0.4,
    "min_replicas": 2,
    "token_budget": BUDGET,
}
ENOUGH = 10_000
LEAST = 30
"""Inner steps that both make in a little more than an interval of 0.4 s."""


def paced(trial: Trial, step_s: float, steps: int = ENOUGH) -> None:
    """Make so many inner steps, or fewer if the replica is done."""
    for _ in range(steps):
        if trial.replica.done:
            return
        trial.step()
        time.sleep(step_s)


def trailing(slow: Trial, fast: Trial, every: int) -> None:
    """Make an inner step for so many of another's, however long those take; to the end."""
    while not slow.replica.done:
        slow.step()
        at = fast.replica.inner_step + every
        wait_until(
            lambda at=at: fast.replica.inner_step >= at or fast.replica.done, 60, "it goes on"
        )


def pair(cluster: Cluster, run: str, **more: Any) -> tuple[Trial, Trial]:
    how = {**TIMED, **more}
    fast, slow = (Trial(cluster.control_url, run, seed, settings=how) for seed in range(2))
    return fast, slow


def train_to_the_end(fast: Trial, slow: Trial) -> None:
    together(lambda: paced(fast, FAST_S), lambda: paced(slow, SLOW_S))
    assert fast.replica.done and slow.replica.done


def ends_with_what_is_published(cluster: Cluster, run: str, *trials: Trial) -> None:
    values, revision = published(cluster.sync_address, run)
    for trial in trials:
        assert trial.replica.revision == revision
        for name, value in trial.parameters().items():
            assert np.array_equal(value.numpy(), values[name]), name


def rounds(cluster: Cluster, run: str, fragment: int = 0) -> list[dict[str, dict[str, Any]]]:
    """What replicas brought to each round of a fragment, oldest first, once all are told."""
    newest, found = published(cluster.sync_address, run)[1], dict[int, Any]()

    def all_told() -> bool:
        for told in cluster.get(f"/runs/{run}/rounds?limit=1000"):
            if told["fragment"] == fragment:
                found[told["revision"]] = {c["replica"]: c for c in told["contributions"]}
        return len(found) == newest + 1

    wait_until(all_told, 20, "every round is told")
    return [found[revision] for revision in range(1, newest + 1)]


def test_both_are_in_every_round_with_their_own_steps(cluster: Cluster) -> None:
    fast, slow = pair(cluster, "both")
    with joined(fast, slow):
        train_to_the_end(fast, slow)
    ends_with_what_is_published(cluster, "both", fast, slow)
    told = rounds(cluster, "both")
    assert len(told) >= 2
    for both in told:
        assert both.keys() == {"replica-0", "replica-1"}
        assert {one["verdict"] for one in both.values()} == {"accepted"}
        assert all(one["inner_steps"] >= 1 for one in both.values())
    steps = [sum(both[f"replica-{n}"]["inner_steps"] for both in told) for n in range(2)]
    assert steps[0] > steps[1], "who is faster makes more of them"
    assert sum(steps) * STEP_TOKENS == fast.replica.committed_tokens >= BUDGET
    assert fast.replica.stats.stale == slow.replica.stats.stale == 0


@pytest.mark.parametrize(
    ("overlap", "groups"), [(3, 1), (0, 3), (2, 10)], ids=["overlap", "groups", "streaming"]
)
def test_with_overlap_and_in_groups_all_end_with_what_is_published(
    cluster: Cluster, overlap: int, groups: int
) -> None:
    run = f"ways-{overlap}-{groups}"
    fast, slow = pair(cluster, run, overlap_steps=overlap, fragment_groups=groups)
    with joined(fast, slow):
        train_to_the_end(fast, slow)
    ends_with_what_is_published(cluster, run, fast, slow)
    assert all(len(both) == 2 for both in rounds(cluster, run))


def test_intervals_begin_after_the_synchronous_phase(cluster: Cluster) -> None:
    fast, slow = pair(cluster, "warm", warmup_steps=3)
    with joined(fast, slow):
        together(lambda: paced(fast, FAST_S, 3), lambda: paced(slow, SLOW_S, 3))
        assert fast.replica.revision == slow.replica.revision == 1
        train_to_the_end(fast, slow)
    ends_with_what_is_published(cluster, "warm", fast, slow)
    told = rounds(cluster, "warm")[1:]
    assert told and all(len(both) == 2 for both in told)
    steps = [sum(both[f"replica-{n}"]["inner_steps"] for both in told) for n in range(2)]
    assert fast.replica.committed_tokens == (sum(steps) + 2 * 3) * STEP_TOKENS


@pytest.mark.long
def test_an_interval_goes_on_until_all_together_have_made_the_least_number_of_steps(
    cluster: Cluster,
) -> None:
    seconds, budget = 0.4, 7 * LEAST * STEP_TOKENS
    assert seconds / (2 * FAST_S) + seconds / SLOW_S < LEAST
    how = {"sync_seconds": seconds, "token_budget": budget, "min_round_steps": LEAST}
    fast, slow = pair(cluster, "least", **how)
    with joined(fast, slow):
        together(lambda: paced(fast, 2 * FAST_S), lambda: paced(slow, SLOW_S))
    told = rounds(cluster, "least")[1:-1]  # for the first nobody knows of the other; the last ends
    assert len(told) >= 3
    assert all(sum(one["inner_steps"] for one in both.values()) >= LEAST for both in told)
    own = [both["replica-0"]["inner_steps"] for both in told]
    assert min(own) < LEAST, "it knows what the other brings"


def test_without_rounds_that_wait_by_time_after_a_synchronous_phase(cluster: Cluster) -> None:
    fast, slow = pair(
        cluster, "alone", strategy="async", warmup_steps=3, token_budget=2 * BUDGET // 3
    )
    with joined(fast, slow):
        together(lambda: paced(fast, FAST_S, 3), lambda: paced(slow, SLOW_S, 3))
        assert fast.replica.revision == slow.replica.revision == 1
        together(lambda: paced(fast, FAST_S), lambda: trailing(slow, fast, 5))
        committed = max(fast.replica.committed_tokens, slow.replica.committed_tokens)
    pushes: list[Any] = []

    def all_told() -> bool:
        told = cluster.get("/runs/alone/rounds?limit=1000")
        pushes[:] = [
            c
            for r in told
            if r["fragment"] == 3 and r["closed_by"] == "push"
            for c in r["contributions"]
        ]
        steps = sum(c["inner_steps"] for c in pushes)
        return (steps + 2 * 3) * STEP_TOKENS >= committed

    wait_until(all_told, 20, "every push is told")
    per_push = [
        np.mean([c["inner_steps"] for c in pushes if c["replica"] == f"replica-{n}"])
        for n in range(2)
    ]
    assert per_push[0] > per_push[1], "as many as each can make"
    assert all(c["verdict"] == "accepted" for c in pushes)


def test_who_has_no_more_data_holds_up_nobody(cluster: Cluster) -> None:
    fast, slow = pair(cluster, "ends", min_replicas=1, expected_replicas=2, token_budget=2 * BUDGET)

    def leave_early() -> None:
        with joined(slow):
            paced(slow, SLOW_S, 9)

    def go_on() -> None:
        with joined(fast):
            paced(fast, FAST_S)

    together(leave_early, go_on)
    assert fast.replica.done
    ends_with_what_is_published(cluster, "ends", fast)
    told = rounds(cluster, "ends")
    assert sum(one["replica-1"]["inner_steps"] for one in told if "replica-1" in one) == 9
    assert set(told[-1]) == {"replica-0"}


def test_a_joiner_is_soon_in_every_round(cluster: Cluster) -> None:
    fast, slow = pair(cluster, "joiner", min_replicas=1, token_budget=3 * BUDGET)
    with joined(fast):
        paced(fast, FAST_S, 20)

        def join() -> None:
            with joined(slow):
                paced(slow, SLOW_S)

        together(lambda: paced(fast, FAST_S), join)
    ends_with_what_is_published(cluster, "joiner", fast, slow)
    told = [len(one) for one in rounds(cluster, "joiner")]
    assert told == sorted(told) and told[-1] == 2, "and from then on"


@pytest.mark.long
def test_an_interval_changes_while_the_run_goes_on(cluster: Cluster) -> None:
    """From by time to by steps, and to another time, in either order of who hears first."""
    fast, slow = pair(cluster, "live", token_budget=6 * BUDGET)

    def change() -> None:
        for patch in ({"sync_seconds": None}, {"sync_seconds": 0.2}, {"sync_seconds": 0.3}):
            before = fast.replica.revision
            cluster.http.patch("/runs/live/settings", json={"settings": patch}).raise_for_status()
            wait_until(
                lambda want=patch["sync_seconds"], before=before: (
                    (fast.replica.settings.sync_seconds == want and fast.replica.revision > before)
                    or fast.replica.done
                ),
                30,
                "a round by it",
            )

    with joined(fast, slow):
        together(lambda: train_to_the_end(fast, slow), change)
    ends_with_what_is_published(cluster, "live", fast, slow)
    assert all(len(both) == 2 for both in rounds(cluster, "live"))


@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("sync_every", 10**6, 4), ("sync_seconds", 86_400.0, 0.4)]
)
def test_an_interval_set_far_too_long_ends_once_that_is_mended(
    cluster: Cluster, name: str, wrong: float, right: float
) -> None:
    run = name.replace("_", "-")
    trial = Trial(cluster.control_url, run, 0, settings={**QUICK, name: right})

    def takes(value: float, rounds: int) -> None:
        """Train until this replica goes by the new value, and has made so many rounds."""
        patch = {"settings": {name: value}}
        cluster.http.patch(f"/runs/{run}/settings", json=patch).raise_for_status()
        end = time.monotonic() + 20
        replica = trial.replica
        while getattr(replica.settings, name) != value or replica.stats.rounds < rounds:
            assert time.monotonic() < end, "it never came"
            paced(trial, FAST_S, 1)

    with joined(trial):
        takes(wrong, 0)
        trial.replica.finish()
        takes(right, trial.replica.stats.rounds + 1)


@pytest.mark.long
def test_a_paused_run_goes_on_by_time(cluster: Cluster) -> None:
    fast, slow = pair(cluster, "pause", token_budget=4 * BUDGET)

    def pause() -> None:
        wait_until(lambda: fast.replica.revision >= 2, 30, "a round")
        cluster.post("/runs/pause/pause")
        trials = (fast, slow)
        wait_until(lambda: any(t.replica.phase == "paused" for t in trials), 30, "it pauses")
        time.sleep(TIMED["sync_seconds"])  # an interval ends meanwhile
        cluster.post("/runs/pause/resume")

    with joined(fast, slow):
        together(lambda: train_to_the_end(fast, slow), pause)
    ends_with_what_is_published(cluster, "pause", fast, slow)


@pytest.mark.long
def test_a_round_that_has_just_ended_late_begins_an_interval_of_whole_length(
    cluster: Cluster,
) -> None:
    """By the round before, the next push would be long due; it would hold next to nothing."""
    seconds = 1.5
    one, other = pair(cluster, "late", sync_seconds=seconds, overlap_steps=3)

    def is_published() -> bool:
        try:
            return published(cluster.sync_address, "late")[1] == 2
        except AssertionError:
            return False  # some of its fragments are

    with joined(one, other):
        time.sleep(seconds)
        for trial in (one, other):
            trial.step(1)
        for trial in (one, other):
            trial.step(4)  # three of overlap, and one that finds the round merged
        time.sleep(seconds)
        one.step(1 + 2)  # its push, and two of overlap
        time.sleep(2 * seconds)
        other.step(1)
        wait_until(is_published, 20, "both pushed")
        one.step(1 + 2)  # the last of overlap, and two
        other.step(4)
        time.sleep(seconds)
        for trial in (one, other):
            trial.step(1)
    told = rounds(cluster, "late")
    assert [both["replica-0"]["inner_steps"] for both in told[:3]] == [1, 5, 6]


@pytest.mark.long
@pytest.mark.parametrize("overlap", [0, 2])
def test_what_is_not_finite_heals(cluster: Cluster, overlap: int) -> None:
    run = f"heals-{overlap}"
    # Nobody is waited for who has yet to make a step.
    how = {"overlap_steps": overlap, "token_budget": 3 * BUDGET, "min_replicas": 1}
    fast, slow = pair(cluster, run, **how)
    with joined(fast, slow):
        together(lambda: paced(fast, FAST_S, 5), lambda: paced(slow, SLOW_S, 2))
        with torch.no_grad():
            fast.model.head.weight[0, 0] = torch.nan
        train_to_the_end(fast, slow)
        assert fast.replica.stats.anomalous > 0
        assert slow.replica.stats.anomalous == 0
        assert all(value.isfinite().all() for value in fast.parameters().values())
    ends_with_what_is_published(cluster, run, fast, slow)


def test_all_ranks_of_a_replica_push_as_its_first_one_says(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Their clocks and their paces differ; what is due comes from one of them."""
    job = {
        "control": cluster.control_url,
        "run": "ranks",
        "name": "wide",
        "seed": 3,
        "settings": {**TIMED, "fragment_groups": 2, "overlap_steps": 1},
        "steps": ENOUGH,
        "probe": -1,
        "pace_s": [FAST_S, 3 * FAST_S],
    }
    with ranks(tmp_path, job, 2) as processes:
        trial = Trial(cluster.control_url, "ranks", 5, settings=job["settings"])
        with joined(trial):
            paced(trial, SLOW_S)
            assert trial.replica.done
        codes = [process.wait(60) for process in processes]
    assert codes == [0, 0], [log.read_text() for log in sorted(tmp_path.glob("*.log"))]
    values, revision = published(cluster.sync_address, "ranks")
    told = json.loads((tmp_path / "wide.out.json").read_text())
    assert (told["revision"], told["stale"]) == (revision, 0)
    whole = load_file(tmp_path / "wide.safetensors")
    assert all(np.array_equal(whole[name], value) for name, value in values.items())
    ends_with_what_is_published(cluster, "ranks", trial)
