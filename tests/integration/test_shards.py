"""Several sync services share a run: the result is one's, and each falls and rises alone."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest

from syncline.cli.app import run
from syncline.control import ControlClient
from syncline.link import Link
from syncline.patience import patiently
from syncline.train.observe import newest_cut
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.files import SEAL
from syncline_testing.cluster import Cluster, Supervised
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    arrived,
    joined,
    together,
)
from syncline_testing.waiting import wait_until

RULES: dict[str, Any] = {**QUICK, "strategy": "diloco", "expected_replicas": 2, "min_replicas": 2}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("one")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("two"), shards=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("three"), shards=3) as cluster:
        yield cluster


def trained(cluster: Cluster, run: str, steps: int, **rules: Any) -> dict[str, np.ndarray]:
    """Two replicas' merged parameters after so many inner steps, as an export sees them."""
    trials = [
        # Alike at first, since whoever is quicker offers revision 0.
        Trial(cluster.control_url, run, seed, settings=RULES | rules, model=TinyModel())
        for seed in (1, 2)
    ]
    with joined(*trials):
        together(*(lambda t=t: t.step(steps) for t in trials))
        together(*(trial.replica.finish for trial in trials))
        return observed(cluster, run)


def owned(cluster: Cluster, run: str) -> list[set[int]]:
    """The fragments of each service."""
    found: list[set[int]] = []
    for address in cluster.sync_addresses:
        with closing(Link(address, TimeoutSettings(), None)) as link:
            found.append({state.fragment for state in link.status(run).fragments})
    return found


def observed(cluster: Cluster, run: str) -> dict[str, np.ndarray]:
    client = ControlClient(cluster.control_url, None, 10.0)
    try:
        cut = newest_cut(client.run(run), client, None)
        return {name: tensor.numpy() for name, tensor in cut.tensors.items()}
    finally:
        client.close()


@pytest.mark.long
def test_a_save_that_every_service_refuses_is_told_once(two: Cluster, tmp_path: Path) -> None:
    trained(two, "kept", 4)
    (tmp_path / "file").touch()
    save = ["checkpoints", "save", "kept", "--control", two.control_url]
    assert run([*save, str(tmp_path / "file")]) == 42
    assert run([*save, str(tmp_path / "here")]) == 0

    def told() -> list[str]:
        kinds = [one["kind"] for one in two.get("/events?run=kept")]
        return [kind for kind in kinds if kind.startswith("checkpoint.")]

    wait_until(lambda: told()[-1:] == ["checkpoint.saved"], 10, "the second is told")
    assert told() == ["checkpoint.failed", "checkpoint.saved"]


@pytest.mark.parametrize(
    ("several", "warmup_steps"),
    [("two", 0), ("two", 3), pytest.param("three", 0, marks=pytest.mark.long)],
)
def test_several_services_give_what_one_gives_bit_for_bit(
    one: Cluster, several: str, warmup_steps: int, request: pytest.FixtureRequest
) -> None:
    many: Cluster = request.getfixturevalue(several)
    run = f"same-{several}-{warmup_steps}"
    ours, theirs = (
        trained(cluster, run, 3 * 4 + warmup_steps, warmup_steps=warmup_steps)
        for cluster in (many, one)
    )
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)

    parts = owned(many, run)
    assert all(parts), "each owns something"

    def told(cluster: Cluster) -> dict[int, int]:
        """By fragment: the newest revision that the control plane has heard of."""
        return {r["fragment"]: r["revision"] for r in cluster.get(f"/runs/{run}/rounds")}

    def alike() -> bool:
        revision = many.get(f"/runs/{run}")["revision"]
        alike = revision == one.get(f"/runs/{run}")["revision"] >= 3
        return alike and told(many) == told(one) == dict.fromkeys(set().union(*parts), revision)

    wait_until(alike, 20, "all have told the control plane of all rounds")


def test_a_replica_talks_to_both_at_once(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the run, and pushes, at neither before it has begun to at the other."""
    opening, begun = Barrier(2), {address: Event() for address in two.sync_addresses}
    open_run, push = Link.open_run, Link.push

    def opened(link: Link, *what: Any) -> pb.OpenRunResponse:
        opening.wait(20)
        return open_run(link, *what)

    def pushed(link: Link, *what: Any) -> pb.PushResponse:
        begun[link.address].set()
        assert all(other.wait(20) for other in begun.values())
        return push(link, *what)

    monkeypatch.setattr(Link, "open_run", opened)
    monkeypatch.setattr(Link, "push", pushed)
    trial = Trial(two.control_url, "both", 1, settings=QUICK)
    with joined(trial):
        trial.step(4)
        trial.replica.finish()
        assert trial.replica.revision == 1


def test_a_service_that_is_killed_in_a_round_stalls_its_own_fragments_and_recovers_alone(
    two: Cluster,
) -> None:
    trials = [Trial(two.control_url, "kill", seed, settings=RULES) for seed in (1, 2)]

    def revisions() -> dict[int, int]:
        return {r["fragment"]: r["revision"] for r in two.get("/runs/kill/rounds")}

    with joined(*trials):
        together(*(lambda t=t: t.step(4) for t in trials))
        together(*(trial.replica.finish for trial in trials))
        wait_until(lambda: set(revisions().values()) == {1}, 20, "the first round is told of")
        others, its = owned(two, "kill")
        assert others and its
        trials[0].step(4)  # its pushes are on their way, and wait for the other's
        two.syncs[1].kill()
        trials[1].step(4)
        went_on = dict.fromkeys(others, 2) | dict.fromkeys(its, 1)
        wait_until(lambda: revisions() == went_on, 20, "all rounds but the dead one's go on")
        two.syncs[1].start()
        together(*(trial.replica.finish for trial in trials))
        wait_until(lambda: set(revisions().values()) == {2}, 20, "it recovered alone")
        values = [trial.parameters() for trial in trials]
        assert all(bool((values[0][name] == values[1][name]).all()) for name in values[0])
        merged = observed(two, "kill")
        assert all(np.array_equal(values[0][name].numpy(), merged[name]) for name in merged)


@pytest.mark.timeout(240)
def test_a_service_that_is_killed_in_a_round_is_started_anew_and_counts_each_push_once(
    tmp_path: Path,
) -> None:
    """One command keeps both. The run comes to the same bits as one without a kill."""
    with Supervised(tmp_path, shards=2) as cluster:
        patient = {"timeouts": {"lease": 30.0, "round_deadline": 60.0}}  # no other loses a push
        calm = trained(cluster, "calm", 3 * 4, **patient)
        rules = RULES | patient
        trials = [
            Trial(cluster.control_url, "killed", seed, settings=rules, model=TinyModel())
            for seed in (1, 2)
        ]

        def revisions() -> dict[int, int]:
            return {r["fragment"]: r["revision"] for r in cluster.get("/runs/killed/rounds")}

        def pids() -> list[int]:
            return [int(pid) for pid in re.findall(r"started .*pid=(\d+)", sync.log.read_text())]

        sync = cluster.sync
        first, second = pids()
        with joined(*trials):
            together(*(lambda t=t: t.step(4) for t in trials))
            together(*(trial.replica.finish for trial in trials))
            wait_until(lambda: set(revisions().values()) == {1}, 20, "the first round is told of")
            others, its = owned(cluster, "killed")
            trials[0].step(4)
            wait_until(
                lambda: all(all(arrived(a, "killed")) for a in cluster.sync_addresses),
                *(20, "all its pushes are accepted, and in memory alone"),
            )
            os.kill(sync.pid, signal.SIGSTOP)  # or it might be back before anybody has looked
            os.kill(second, signal.SIGKILL)
            trials[1].step(4)
            went_on = dict.fromkeys(others, 2) | dict.fromkeys(its, 1)
            wait_until(lambda: revisions() == went_on, 20, "all rounds but the dead one's go on")
            os.kill(sync.pid, signal.SIGCONT)
            together(*(trial.replica.finish for trial in trials))
            wait_until(lambda: set(revisions().values()) == {2}, 40, "it recovered by itself")
            together(*(lambda t=t: t.step(4) for t in trials))
            together(*(trial.replica.finish for trial in trials))
            killed = observed(cluster, "killed")
            wait_until(lambda: set(revisions().values()) == {3}, 20, "the last round is told of")
        assert pids()[:2] == [first, second] and len(pids()) == 3
        assert all(np.array_equal(killed[name], calm[name]) for name in calm)
        tokens = [cluster.get(f"/runs/{run}")["committed_tokens"] for run in ("calm", "killed")]
        assert tokens == [2 * 3 * 4 * STEP_TOKENS] * 2


@pytest.mark.long
def test_a_service_that_may_have_gone_back_is_in_an_epoch_of_its_own(two: Cluster) -> None:
    """Replicas push to each under its own epoch; what int4 lost of the other's stays owed."""
    rules = {**RULES, "durability": "async", "codec": {"up": "int4", "down": "bf16"}}
    trials = [Trial(two.control_url, "epochs", seed, settings=rules) for seed in (1, 2)]

    def status() -> list[tuple[int, set[int]]]:
        """(epoch, revisions) of each service."""
        found: list[tuple[int, set[int]]] = []
        for service in two.get("/sync-services"):
            with closing(Link(service["address"], TimeoutSettings(), None)) as link:
                answer = patiently(lambda at=link: at.status("epochs"), 20.0, Event())
                found.append((answer.epoch, {state.revision for state in answer.fragments}))
        return found

    def is_written() -> bool:
        heads = list((two.folder / "store-1" / "runs" / "epochs").glob("*/head.json"))
        return all('"file": "r00000001' in SEAL.open(head.read_bytes()) for head in heads)

    with joined(*trials):
        together(*(lambda t=t: t.step(4) for t in trials))
        together(*(trial.replica.finish for trial in trials))
        wait_until(is_written, 20, "revision 1 is on the disk")
        assert status() == [(1, {1}), (1, {1})]
        two.syncs[1].kill()
        two.syncs[1].start()
        assert status() == [(1, {1}), (2, {1})]
        together(*(lambda t=t: t.step(4) for t in trials))
        together(*(trial.replica.finish for trial in trials))
        # Pushed from what the dead one had published, that progress waits for the next boundary.
        assert status() == [(1, {2}), (2, {1})]
        for revision in (2, 3):
            together(*(lambda t=t: t.step(4) for t in trials))
            together(*(trial.replica.finish for trial in trials))
            assert status() == [(1, {revision}), (2, {revision})]
        values = [trial.parameters() for trial in trials]
        assert all(bool((values[0][name] == values[1][name]).all()) for name in values[0])
