"""The end of a replica's part: bounded by one deadline, and never half of one thing."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from syncline import exchange, heartbeat, stalled
from syncline.core.agreement import Answer
from syncline.push import Outcome, Wanted
from syncline.session import Session
from syncline_proto.errors import Unreachable
from syncline_proto.settings import TimeoutSettings
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, together
from syncline_testing.waiting import wait_until

IMPATIENT = {
    **QUICK,
    "min_replicas": 2,
    "sync_every": 1000,
    "timeouts": {"lease": 1.5, "round_deadline": 2.0},
}

TIMEOUTS = TimeoutSettings.model_validate(IMPATIENT["timeouts"])
CALLS_S = exchange.CLOSE_S + stalled.CLOSE_S + heartbeat.CLOSE_S + 2 * TIMEOUTS.connect_s
PROMISED_S = TIMEOUTS.round_deadline_s + TIMEOUTS.lease_s + CALLS_S
"""How long a drain may take, as docs/operations.md says it: 2 + 1.5 + 25 s here."""


def session_of(trial: Trial) -> Session:
    session = trial.replica._session
    assert isinstance(session, Session)
    return session


def stepping(trial: Trial, steps: int) -> None:
    """A script's loop, to which SIGTERM comes amid its third step."""
    for step in range(steps):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        trial.step()


def test_sigterm_drains_a_script_that_has_said_nothing_of_it(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "script", 0, settings=IMPATIENT | {"min_replicas": 1})
    with trial.replica as replica:
        stepping(trial, 5)
        assert replica.done
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    (left,) = cluster.get("/runs/script/replicas")
    assert (left["state"], replica.committed_tokens) == ("left", 3 * STEP_TOKENS)
    wait_until(lambda: [3] in cluster.steps("script"), 20, "what it had done of its interval")
    with replica:
        trial.step(2)
        assert not replica.done, "whoever starts again was not asked to leave"


def test_sigterm_stays_what_a_script_has_made_of_it_or_asks_to_be_left(cluster: Cluster) -> None:
    how: dict[str, Any] = {"settings": IMPATIENT | {"min_replicas": 1}}
    for run, handler, more in (
        ("own", signal.SIG_IGN, {}),
        ("unasked", signal.SIG_DFL, {"drain_on_sigterm": False}),
    ):
        before = signal.signal(signal.SIGTERM, handler)
        try:
            with Trial(cluster.control_url, run, 0, **how, **more).replica:
                assert signal.getsignal(signal.SIGTERM) is handler
            assert signal.getsignal(signal.SIGTERM) is handler
        finally:
            signal.signal(signal.SIGTERM, before)
    with Trial(None, "alone", 0).replica:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(ZeroDivisionError), Trial(cluster.control_url, "fails", 0, **how).replica:
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_drain_does_not_wait_for_a_round_that_nobody_closes(cluster: Cluster) -> None:
    """The exchange alone would wait until it gives up, and end with Unreachable."""
    a, b = (Trial(cluster.control_url, "drain", seed, settings=IMPATIENT) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(2), lambda: b.step(2))
        a.replica.request_drain()
        with capture_logs() as logs:
            a.step(1)
            assert a.replica.done and a.replica.drained
    (left,) = [line["fragments"] for line in logs if line["event"] == "leave.early"]
    assert len(left) == 4
    # What it had pushed is still of use to those who stay.
    assert (a.replica.revision, b.replica.revision) == (0, 1)
    assert b.replica.committed_tokens == 5 * STEP_TOKENS


def test_who_was_not_asked_to_leave_waits_for_its_last_round_no_longer(cluster: Cluster) -> None:
    """Its loop has ended, and another of the run makes no step."""
    a, b = (Trial(cluster.control_url, "ended", seed, settings=IMPATIENT) for seed in range(2))
    with joined(a, b):
        a.step(2)
        with capture_logs() as logs:
            a.replica.close()
        assert [line["event"] for line in logs].count("leave.early") == 1
        (left,) = (one for one in cluster.get("/runs/ended/replicas") if one["state"] == "left")
        assert left["replica"] == "replica-0" and a.replica.revision == 0


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_loop_that_ends_before_the_budget_says_how_much_it_leaves(
    cluster: Cluster, rounds: int
) -> None:
    each = QUICK["sync_every"] * STEP_TOKENS
    settings = {**QUICK, "min_replicas": 1, "token_budget": 3 * each}
    trial = Trial(cluster.control_url, f"after-{rounds}", 0, settings=settings)
    trial.replica.start()
    with capture_logs() as logs:
        trial.step(rounds * QUICK["sync_every"])
        trial.replica.close()
    told = [line["so"] for line in logs if line["event"] == "replica.left"]
    assert told == [f"{each} tokens of the run's budget are left to others"] * (3 - rounds)


def test_a_value_is_taken_whole_or_not_at_all(cluster: Cluster) -> None:
    """One fragment comes, the next does not."""
    settings = {**QUICK, "min_replicas": 1}
    trial = Trial(cluster.control_url, "whole", 0, settings=settings)
    with joined(trial):
        trial.step(2)
        before = trial.parameters()
        session = session_of(trial)
        failed: Future[Outcome] = Future()
        failed.set_result(Outcome(answer=Answer.FAILED, error=Unreachable("It is away.")))
        pulls = [session._exchange.begin_pull(fragment, Wanted()) for fragment in range(4)]
        with pytest.raises(Unreachable):
            session._rounds.take([*pulls[:2], failed, pulls[3]])
        assert all(torch.equal(before[name], p) for name, p in trial.parameters().items())
        assert session._rounds.take(pulls)
        assert not torch.equal(before["head.weight"], trial.parameters()["head.weight"])


@pytest.mark.parametrize("overlap", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_drain_ends_by_itself_where_nobody_answers_what_was_pushed(
    tmp_path: Path, overlap: int
) -> None:
    """Within the time that is promised. The exchange alone would wait for five minutes."""
    how = {**IMPATIENT, "min_replicas": 1, "sync_every": 4, "overlap_steps": overlap}
    with Cluster(tmp_path) as cluster:
        trial = Trial(cluster.control_url, "stuck", 0, settings=how)
        trial.replica.start()
        os.kill(cluster.sync.pid, signal.SIGSTOP)
        try:
            trial.step(4)
            trial.replica.request_drain()
            began = time.monotonic()
            with capture_logs() as logs:
                trial.step(2)
                assert trial.replica.drained and trial.replica.revision == 0
                trial.replica.close()
            took_s = time.monotonic() - began
        finally:
            os.kill(cluster.sync.pid, signal.SIGCONT)
        assert took_s <= PROMISED_S
        said = [line["event"] for line in logs]
        assert said.count("leave.early") == said.count("replica.drained") == 1
        assert cluster.get("/runs/stuck/replicas")[0]["state"] == "left"


def test_a_drain_during_the_synchronous_phase_waits_for_nobody_longer(cluster: Cluster) -> None:
    """Its gradient waits for those of another, who never comes."""
    how = {**IMPATIENT, "warmup_steps": 4}
    trial = Trial(cluster.control_url, "phase", 0, settings=how)
    with joined(trial):
        trial.replica.request_drain()
        trial.step(1)
        assert trial.replica.drained
    assert cluster.get("/runs/phase/replicas")[0]["state"] == "left"
