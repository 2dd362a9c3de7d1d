"""How a trainer that takes part in a run ends early: its exit code, and one sentence for people."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline.core.barren import BARREN_MAX
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import published
from syncline_testing.training import tiny_job, to_toml
from syncline_testing.waiting import wait_until
from syncline_testing.warm import Program, warm, warm_ranks

pytestmark = pytest.mark.timeout(240)

ENDLESS = 1_000_000
START_S = 100.0
"""A process loads PyTorch, on a machine that may be busy."""


@pytest.fixture
def job(data: Path, tmp_path: Path) -> Path:
    """Of a run that nobody ends."""
    run = {"sync_every": 4, "timeouts": {"lease": 20.0, "round_deadline": 60.0}}
    path = tmp_path / "job.toml"
    path.write_text(to_toml(tiny_job(data, steps=ENDLESS, run=run)))
    return path


def train(
    cluster: Cluster, job: Path, run: str, replica: str, *overrides: str
) -> AbstractContextManager[Program]:
    """What ``syncline train`` becomes."""
    argv = arguments(job, run, replica, *overrides)
    return warm(*argv, SYNCLINE_CONTROL=cluster.control_url)


def arguments(job: Path, run: str, replica: str, *overrides: str) -> list[str]:
    argv = ["-m", "syncline.train", str(job), "--progress", "none"]
    argv += ["--run", run, "--replica", replica]
    for override in overrides:
        argv += ["--set", override]
    return argv


def ended(process: Program) -> tuple[int | None, str]:
    """The exit code, and the sentence that standard error ends with: the only one of an error."""
    _, errors = process.communicate(timeout=START_S)
    assert "Traceback" not in errors, errors
    *_, sentence = errors.splitlines()
    assert errors.count("error: ") == 1 and sentence.startswith("error: "), errors
    return process.returncode, sentence.removeprefix("error: ")


def revision(cluster: Cluster, run: str) -> int:
    """The run's; -1 before there is the run."""
    answer: Any = cluster.http.get(f"/runs/{run}")
    return answer.json()["revision"] if answer.is_success else -1


def state_of(cluster: Cluster, run: str) -> str:
    """Of its only replica's lease."""
    (view,) = cluster.get(f"/runs/{run}/replicas")
    return view["state"]


def until_rounds(cluster: Cluster, run: str, more: int) -> None:
    wanted = max(0, revision(cluster, run)) + more
    wait_until(lambda: revision(cluster, run) >= wanted, START_S, f"{run} goes on")


def test_a_model_that_diverges_ends_with_50_and_gives_nothing_to_the_run(
    cluster: Cluster, job: Path
) -> None:
    """Each step multiplies the matrices by -1e13, so that they overflow in the fourth."""
    sick = ("optimizer.lr=10", "optimizer.weight_decay=1e12", "run.sync_every=100")
    with train(cluster, job, "sick", "only", *sick) as process:
        code, sentence = ended(process)
    assert sentence.startswith("the loss or its gradient was not finite in 3 steps in a row, and ")
    assert "again after 2 returns to the run's newest revision; lower" in sentence
    assert code == 50
    assert (revision(cluster, "sick"), state_of(cluster, "sick")) == (0, "left")
    values, _ = published(cluster.sync_address, "sick")
    assert all(np.isfinite(value).all() for value in values.values())


def test_a_run_in_which_no_push_counts_ends_with_50(cluster: Cluster, job: Path) -> None:
    capped = ("run.penalty.norm_max=1e-6", "run.sync_every=1")
    with train(cluster, job, "capped", "only", *capped) as process:
        code, sentence = ended(process)
    assert sentence.startswith("Nobody's push counted in 10 rounds in a row (only does not count: ")
    assert "is over norm_max 1e-06); lower optimizer.lr, or see run.penalty.norm_max." in sentence
    assert code == 50
    # The sync service reports its rounds a moment after it has answered them.
    wait_until(lambda: revision(cluster, "capped") == BARREN_MAX, 20, "the last round is told")
    assert cluster.get("/runs/capped")["committed_tokens"] == 0


def test_another_model_ends_with_18_and_who_is_kicked_with_20(cluster: Cluster, job: Path) -> None:
    with train(cluster, job, "shared", "first") as first:
        until_rounds(cluster, "shared", 1)
        wider = "model.config.hidden_size=64"
        with train(cluster, job, "shared", "wider", wider) as other:
            code, sentence = ended(other)
        assert code == 18
        assert sentence.startswith("This model is not the one of run shared (model.config.")
        assert "model.config.hidden_size: the run has 32, here 64" in sentence
        until_rounds(cluster, "shared", 2)  # nobody else minds
        cluster.post("/runs/shared/replicas/first/kick")
        code, sentence = ended(first)
    assert code == 20
    assert sentence == (
        "The lease is lost: An operator removed this replica from the run; only another name may "
        "join it."
    )
    assert {view["replica"]: view["state"] for view in cluster.get("/runs/shared/replicas")} == {
        "first": "kicked",
    }, "who trains another model never joins"


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_who_stood_still_for_longer_than_its_lease_joins_again(
    cluster: Cluster, job: Path, ranks: int
) -> None:
    """As a machine that slept does; its rank 0 alone, where there are more."""
    run = f"asleep-{ranks}"
    how = ("run.timeouts.lease=2", "run.timeouts.round_deadline=10")
    argv = arguments(job, run, "only", *how)
    with warm_ranks(*argv, count=ranks, SYNCLINE_CONTROL=cluster.control_url) as processes:
        first = processes[0]
        until_rounds(cluster, run, 1)
        first.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(cluster, run) == "lost", START_S, "the lease has run out")
        first.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(cluster, run) == "alive", START_S, "it has joined again")
        until_rounds(cluster, run, 2)
        (view,) = cluster.get(f"/runs/{run}/replicas")
        assert view["incarnation"] == 2
        for process in processes:
            process.send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=START_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, ends
    assert "The lease ran out because no heartbeat came in time" in ends[0]
    assert "it joins the run again, from its newest revision" in ends[0]


@pytest.mark.long
def test_who_is_replaced_by_another_process_stays_out(cluster: Cluster, job: Path) -> None:
    with train(cluster, job, "replaced", "only") as older:
        until_rounds(cluster, "replaced", 1)
        with train(cluster, job, "replaced", "only") as newer:
            code, sentence = ended(older)
            assert code == 20
            assert sentence.startswith("The lease is lost: Another process has joined under the")
            until_rounds(cluster, "replaced", 2)
            newer.send_signal(signal.SIGTERM)
            assert newer.communicate(timeout=START_S) and newer.returncode == 0


def test_who_leaves_on_sigterm_says_that_a_signal_asked(cluster: Cluster, job: Path) -> None:
    with train(cluster, job, "asked", "only") as process:
        until_rounds(cluster, "asked", 1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=START_S)
    assert process.returncode == 0, errors
    assert "a signal (SIGTERM) asked it to leave" in errors and "its own process" not in errors
