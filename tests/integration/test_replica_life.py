"""What may befall a replica: operators, wrong words, lost leases, services that die.

It ends in one sentence or goes on; it never hangs, and nobody else is left waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc
import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from syncline import Replica, exchange, outage
from syncline.heartbeat import News
from syncline.hooks import Hooks
from syncline.patience import RoundPatience
from syncline_proto.errors import (
    ConfigError,
    LayoutMismatch,
    LeaseLost,
    RunConflict,
    Unreachable,
)
from syncline_proto.rest import RunState
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster, free_ports
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    arrived,
    joined,
    published,
    together,
)
from syncline_testing.waiting import wait_until

TWO = {**QUICK, "min_replicas": 2}
ALONE = {**QUICK, "min_replicas": 1}
FRAGMENTS = 4


def steps_until(trial: Trial, holds: Callable[[], bool], seconds: float = 20) -> None:
    """Make inner steps, as a loop would that knows nothing of what goes on."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        trial.step()
        time.sleep(0.01)


def same(a: Trial, b: Trial) -> bool:
    values = b.parameters()
    return all(torch.equal(values[name], p) for name, p in a.parameters().items())


def watches() -> set[threading.Thread]:
    """The threads that look after open links."""
    return {thread for thread in threading.enumerate() if thread.name == "syncline-watch"}


def test_a_drain_brings_in_what_was_done_and_ends_the_loop(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "drain", 0, settings={**ALONE, "sync_every": 1000})
    with capture_logs() as logs, joined(trial):
        trial.step(3)
        cluster.post("/runs/drain/replicas/replica-0/drain")
        steps_until(trial, lambda: trial.replica.done)
        replica = trial.replica
        assert replica.drained
        assert replica.phase == "draining"
        assert replica.committed_tokens == replica.inner_step * STEP_TOKENS
        assert replica.revision == 1
    (said,) = [log for log in logs if log["event"] == "replica.drained"]
    assert said["why"] == "an operator asked it to leave"
    states = {view["replica"]: view["state"] for view in cluster.get("/runs/drain/replicas")}
    assert states == {"replica-0": "left"}
    assert cluster.get("/runs/drain")["state"] == "running"


def test_a_signal_handler_may_ask_for_a_drain(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "term", 0, settings={**ALONE, "sync_every": 1000})
    with joined(trial):
        trial.replica.request_drain()
        trial.step(50)
        assert trial.replica.inner_step == 1
        assert trial.replica.committed_tokens == STEP_TOKENS


def test_leaving_brings_in_the_last_steps(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "leave", seed, settings=TWO) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(6), lambda: b.step(6))
    assert a.replica.revision == b.replica.revision == 2
    assert a.replica.committed_tokens == 12 * STEP_TOKENS
    assert same(a, b)


def test_an_operator_stops_the_run(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "stop", seed, settings=TWO) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(4), lambda: b.step(2))
        # One waits for the round, the other is amid its inner steps.
        cluster.post("/runs/stop/stop")
        a.replica.finish()
        steps_until(b, lambda: b.replica.done)
        assert a.replica.done
        values, _ = published(cluster.sync_address, "stop")
        assert all(np.array_equal(values[n], p.numpy()) for n, p in a.parameters().items())
    with pytest.raises(RunConflict, match="stop"):
        Trial(cluster.control_url, "stop", 2).replica.start()


def test_a_paused_run_stands_still_and_goes_on(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "pause", 0, settings=ALONE)
    with joined(trial):
        began = time.monotonic()
        cluster.post("/runs/pause/pause")
        stop = threading.Event()
        thread = threading.Thread(target=steps_until, args=(trial, stop.is_set))
        thread.start()
        try:
            wait_until(lambda: trial.replica.phase == "paused", 20, "it pauses")
            at = trial.replica.inner_step
            time.sleep(0.5)
            assert trial.replica.inner_step == at
            cluster.post("/runs/pause/resume")
            wait_until(lambda: trial.replica.inner_step > at, 20, "it goes on")
            stats = trial.replica.stats
            assert stats.paused_s > 0.3
            assert stats.paused_s + stats.hook_s + stats.exposed_sync_s < time.monotonic() - began
        finally:
            cluster.post("/runs/pause/resume")
            stop.set()
            thread.join()


@pytest.mark.long
def test_a_pause_costs_no_patience_with_what_was_pushed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is heard at the boundary at which the push goes out: its round cannot close."""

    class Short(RoundPatience):
        def __init__(self, timeouts: TimeoutSettings, paused_s: Callable[[], float]) -> None:
            super().__init__(timeouts, paused_s)
            self.limit_s = self._left_s = 4.0

    monkeypatch.setattr(exchange, "RoundPatience", Short)
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 1.0))
    a, b = (
        Trial(cluster.control_url, "patient", seed, settings={**TWO, "sync_every": 1})
        for seed in range(2)
    )
    with joined(a, b):
        cluster.post("/runs/patient/pause")
        for trial in (a, b):
            wait_until(lambda t=trial: heard(t).run_state is RunState.PAUSED, 20, "it has heard")
        first = threading.Thread(target=a.step)
        first.start()
        try:
            wait_until(lambda: a.replica.phase == "paused", 20, "it pauses")
            time.sleep(6.0)
        finally:
            cluster.post("/runs/patient/resume")
            first.join()
        together(a.replica.finish, lambda: b.step().replica.finish())
        assert a.replica.revision == b.replica.revision == 1


def heard(trial: Trial) -> News:
    """What the control plane last said of the run to this replica."""
    life = trial.replica._life
    assert life is not None and life.pulse is not None
    return life.pulse.news


def test_live_settings_arrive_between_two_rounds(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "live", 0, settings=ALONE)
    with capture_logs() as logs, joined(trial):
        trial.step(2)
        patch = {"settings": {"sync_every": 8, "outer": {"lr": 0.5}}}
        cluster.http.patch("/runs/live/settings", json=patch).raise_for_status()
        steps_until(trial, lambda: trial.replica.settings.sync_every == 8)
        trial.replica.finish()
        assert trial.replica.inner_step % 4 <= 1, "at a boundary, or after the merge that follows"
        rounds = trial.replica.stats.rounds
        trial.step(8)
        trial.replica.finish()
        assert trial.replica.stats.rounds == rounds + 1
    (what,) = [log["what"] for log in logs if log["event"] == "settings.changed"]
    assert what.startswith("outer.lr: ") and "-> 0.5, sync_every: " in what
    again = Trial(cluster.control_url, "live", 0, settings=ALONE)  # the same run all the same
    with capture_logs() as logs, joined(again):
        assert (again.replica.settings.sync_every, again.replica.incarnation) == (8, 2)
    (warned,) = [log for log in logs if log["event"] == "run.settings"]
    assert warned["why"].startswith("live has other settings (outer.lr: the run has 0.5, here ")
    assert warned["why"].endswith(")") and warned["so"] == "this replica goes by the run's"


def test_settings_set_while_a_round_is_waited_for_count_from_the_next(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "await", seed, settings=TWO) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(4), lambda: b.step(4))
        cluster.http.patch("/runs/await/settings", json={"settings": {"sync_every": 3}})
        wait_until(lambda: all(heard(t).settings.sync_every == 3 for t in (a, b)), 20, "heard")
        together(lambda: a.step(3), lambda: b.step(3))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == b.replica.revision == 2


def test_a_kicked_replica_ends_in_one_sentence(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "kick", 0, settings=ALONE)
    with pytest.raises(LeaseLost, match="The lease is lost: An operator removed"), joined(trial):
        cluster.post("/runs/kick/replicas/replica-0/kick")
        steps_until(trial, lambda: False)


def test_a_second_life_fences_the_first(cluster: Cluster) -> None:
    first = Trial(cluster.control_url, "twice", 0, settings=ALONE)
    second = Trial(cluster.control_url, "twice", 0)
    with pytest.raises(LeaseLost), joined(first):
        first.step(5)
        with joined(second):
            assert second.replica.incarnation == 2
            second.step(4)
            second.replica.finish()
            steps_until(first, lambda: False)


def test_whoever_comes_cuts_the_model_as_the_run_has_it(cluster: Cluster) -> None:
    first = Trial(cluster.control_url, "cut", 0, settings={**ALONE, "blocks_per_fragment": 2})
    with joined(first):
        second = Trial(cluster.control_url, "cut", 1)
        with joined(second), grpc.insecure_channel(cluster.sync_address) as channel:
            stub = sync_pb2_grpc.SyncServiceStub(channel)
            layout = stub.OpenRun(pb.OpenRunRequest(run="cut"), timeout=10).layout
            assert [one.name for one in layout.fragments] == ["embeddings", "blocks.0-1", "head"]
            for name, value in first.parameters().items():
                assert torch.equal(value, second.parameters()[name])


def test_other_settings_and_other_models_are_refused_with_the_difference(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "other", 0, settings=ALONE)
    with joined(trial):
        rival = Trial(cluster.control_url, "other", 1, settings={**ALONE, "warmup_steps": 9})
        with pytest.raises(RunConflict, match="warmup_steps"):
            rival.replica.start()
        model = TinyModel(blocks=3)
        optimizer = torch.optim.SGD(model.parameters())
        wide = Replica(model, optimizer, run="other", name="wide", control=cluster.control_url)
        links = watches()
        with pytest.raises(LayoutMismatch, match="blocks"):
            wide.start()
        wait_until(lambda: watches() <= links, 20, "who is refused leaves no link open")
        states = {v["replica"]: v["state"] for v in cluster.get("/runs/other/replicas")}
        assert states["wide"] == "left", "who is refused holds no lease"
        (left,) = [e for e in cluster.get("/events?run=other") if e["kind"] == "replica.left"]
        assert left["message"].startswith("wide left: ") and "blocks" in left["message"]


def test_another_model_under_its_name_leaves_a_replica_at_work(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "twin", 0, settings=ALONE)
    with joined(trial):

        def phase() -> str:
            (view,) = cluster.get("/runs/twin/replicas")
            return view["progress"]["phase"]

        wait_until(lambda: phase() != "joining", 20, "its heartbeat says that it has joined")
        model = TinyModel(blocks=3)
        optimizer = torch.optim.SGD(model.parameters())
        name, control = trial.replica.name, cluster.control_url
        twin = Replica(model, optimizer, run="twin", name=name, control=control)
        with pytest.raises(LayoutMismatch, match="not the one of run twin, on which"):
            twin.start()
        trial.step(2 * trial.replica.settings.sync_every)
        trial.replica.finish()
        assert trial.replica.incarnation == cluster.get("/runs/twin/replicas")[0]["incarnation"]


def test_the_lease_goes_back_whatever_fails_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(cluster.control_url, "untidy", 0, settings=ALONE)
    links = watches()
    trial.replica.start()

    def fail(hooks: Hooks) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Hooks, "remove", fail)
    with pytest.raises(ZeroDivisionError):
        trial.replica.close()
    (view,) = cluster.get("/runs/untidy/replicas")
    assert view["state"] == "left"
    wait_until(lambda: watches() <= links, 20, "its links are closed")


def test_it_is_started_once_and_closed_once_until_it_starts_again(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "once-and-again", 0, settings=ALONE)
    with joined(trial):
        with pytest.raises(ConfigError, match="started already"):
            trial.replica.start()
        trial.step(4)
        first = trial.replica.incarnation
    trial.replica.close()
    revision = trial.replica.revision
    (view,) = cluster.get("/runs/once-and-again/replicas")
    assert (view["state"], view["incarnation"]) == ("left", first)
    again = time.monotonic()
    with joined(trial):
        assert 0 < trial.replica._progress().wall_s < time.monotonic() - again, "of this life"
        trial.step(4)
    assert trial.replica.incarnation > first
    assert (revision, trial.replica.revision) == (1, 2)


def test_nobody_at_the_address_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.5)
    (port,) = free_ports(1)
    settings = {**ALONE, "timeouts": {"lease": 1.0, "round_deadline": 2.0}}
    trial = Trial(f"http://127.0.0.1:{port}", "r", 0, settings=settings)
    with capture_logs() as logs, pytest.raises(Unreachable, match="does not answer"):
        trial.replica.start()
    assert [log["event"] for log in logs] == ["control.away"]
    assert logs[0]["so"] == f"waiting up to 5 s for http://127.0.0.1:{port}"


def test_killing_the_sync_service_amid_a_round_costs_nothing_but_time(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "crash", seed, settings=TWO) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(5), lambda: b.step(5))
        a.step(3)
        everywhere = [{a.replica.name}] * FRAGMENTS
        # Accepted in every fragment, and not yet durable: the rounds wait for b.
        wait_until(lambda: arrived(cluster.sync_address, "crash") == everywhere, 20, "a is in")
        cluster.sync.kill()
        cluster.sync.start()
        b.step(3)
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == b.replica.revision == 2
        assert a.replica.committed_tokens == 16 * STEP_TOKENS
        assert same(a, b)


def test_without_the_control_plane_training_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.5)

    def said(event: str) -> int:
        return sum(log["event"] == event for log in logs)

    a, b = (Trial(cluster.control_url, "headless", seed, settings=TWO) for seed in range(2))
    with capture_logs() as logs, joined(a, b):
        together(lambda: a.step(5), lambda: b.step(5))
        cluster.control.kill()
        wait_until(lambda: said("control.away") == 2, 20, "each says it")
        together(lambda: a.step(8), lambda: b.step(8))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == b.replica.revision == 3
        cluster.control.start()
        together(lambda: a.step(3), lambda: b.step(3))
        wait_until(lambda: said("control.back") == 2, 20, "each says it")
    assert same(a, b)
    assert said("control.away") == 2, "each said it once"
