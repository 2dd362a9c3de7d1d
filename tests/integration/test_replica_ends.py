"""How a script of one's own ends: Python prints little, and a signal is heard while joining."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline import life, outage
from syncline_proto.errors import CalledOff, LeaseLost, SynclineError
from syncline_testing.cluster import Cluster, free_ports
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, together
from syncline_testing.waiting import wait_until
from syncline_testing.warm import Program, warm

SCRIPT = """
import sys, torch, syncline

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters())
replica = syncline.Replica(model, optimizer, run=sys.argv[1], name="own", settings={})
with replica:
    print("joined", flush=True)
    while not replica.done:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

FRAMES_MAX = 12
"""The script's line, torch's, and a door or two of ours."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def script(
    folder: Path, control: str, run: str, changes: Mapping[str, Any] | None = None
) -> AbstractContextManager[Program]:
    """The script as a process of its own."""
    path = folder / "own_loop.py"
    settings = {**QUICK, "min_replicas": 1, **(changes or {})}
    path.write_text(SCRIPT.replace("settings={}", f"settings={settings}"))
    return warm(str(path), run, SYNCLINE_CONTROL=control)


def is_short(printed: str, error: str) -> bool:
    """Whether a traceback shows the user's line, hardly any of ours, and the sentence last."""
    *_, last = printed.strip().splitlines()
    assert last.startswith(f"syncline_proto.errors.{error}: "), printed
    assert printed.count("Traceback") == 1, printed
    return printed.count('  File "') <= FRAMES_MAX and "own_loop.py" in printed


def test_a_dead_control_plane_is_said_below_the_users_own_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with script(tmp_path, f"http://127.0.0.1:{port}", "r") as process:
        logged, printed = process.communicate(timeout=60)
    assert is_short(printed, "Unreachable")
    assert printed.endswith(" (control=, SYNCLINE_CONTROL).\n")
    assert "control.away" in logged and "does not answer" not in logged, "it is said once"


def test_ctrl_c_gives_the_lease_back_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """While it waits for a round, for which there are too few."""
    with script(tmp_path, cluster.control_url, "held", {"min_replicas": 2}) as process:
        wait_until(lambda: phases(cluster, "held") == ["waiting"], 60, "it waits")
        process.send_signal(signal.SIGINT)
        logged, printed = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, "a shell says 130"
    assert printed.strip().endswith("KeyboardInterrupt")
    assert logged.count("replica.left") == 1 and "interrupted" in logged
    assert "push.again" not in logged, "nothing is sent again"
    assert states(cluster, "held") == ["left"]


def test_a_kicked_script_is_told_what_the_operator_did(cluster: Cluster, tmp_path: Path) -> None:
    with script(tmp_path, cluster.control_url, "kick") as process:
        assert process.stdout is not None
        assert "joined\n" in iter(process.stdout.readline, "")
        cluster.post("/runs/kick/replicas/own/kick")
        printed = process.communicate(timeout=60)[1]
    assert is_short(printed, "LeaseLost")
    assert "An operator removed" in printed.splitlines()[-1]


def test_the_sync_services_refusal_is_told_in_the_control_planes_words(cluster: Cluster) -> None:
    """Whichever of the two a kicked replica hears first, its sentence is the same."""
    trial = Trial(cluster.control_url, "one", 0, settings={**QUICK, "min_replicas": 1})
    with pytest.raises(LeaseLost, match="^The lease is lost: An operator removed"), joined(trial):
        life = trial.replica._life
        assert life is not None and life.pulse is not None
        life.pulse._stop.set()  # the heartbeat says nothing: the push is refused first
        life.pulse._thread.join()
        cluster.post("/runs/one/replicas/replica-0/kick")
        trial.step(1000)


def called_off(act: Callable[[], None], recall: Callable[[], None]) -> BaseException | None:
    """What ``act`` raises when it is recalled amid it."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except SynclineError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    recall()
    thread.join(60)
    return raised[0] if raised else None


def test_a_replica_that_waits_for_a_sync_service_is_called_off(cluster: Cluster) -> None:
    """Without the recall the wait would end with Unreachable."""
    cluster.sync.kill()
    trial = Trial(cluster.control_url, "away", 0, settings=QUICK)

    def recall() -> None:
        wait_until(lambda: bool(states(cluster, "away")), 30, "it has a lease")
        trial.replica.request_drain()

    assert isinstance(called_off(trial.replica.start, recall), CalledOff)
    assert states(cluster, "away") == ["left"]


def test_ctrl_c_just_before_there_is_a_session_leaves_no_link_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def watches() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "syncline-watch"]

    monkeypatch.setattr(life, "warn_if_crowded", interrupt)
    trial, before = Trial(cluster.control_url, "half-way", 0, settings=QUICK), watches()
    with pytest.raises(KeyboardInterrupt):
        trial.replica.start()
    assert cluster.get("/runs/half-way/replicas")[0]["state"] == "left"
    assert watches() == before


@pytest.mark.long
def test_who_comes_before_the_first_sync_service_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.5)
    cluster = Cluster(tmp_path)
    trial = Trial(cluster.control_url, "early", 0, settings=QUICK)
    try:
        cluster.control.start()

        def start_the_service() -> None:
            wait_until(lambda: "sync.away" in events(logs), 30, "it is said")
            cluster.sync.start()

        with capture_logs() as logs:
            together(trial.replica.start, start_the_service)
            trial.replica.close()
    finally:
        cluster.stop()
    assert [one for one in events(logs) if one.startswith("sync.")] == ["sync.away", "sync.back"]
    (why,) = (log["why"] for log in logs if log["event"] == "sync.away")
    assert f"start one: syncline-sync --control {cluster.control_url}" in why


def events(logs: list[MutableMapping[str, Any]]) -> list[str]:
    return [log["event"] for log in logs]


def test_a_signal_ends_the_joining_wait(cluster: Cluster, tmp_path: Path) -> None:
    cluster.sync.kill()
    with script(tmp_path, cluster.control_url, "away") as process:
        wait_until(lambda: bool(states(cluster, "away")), 60, "it has a lease")
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=60)[1]
    assert is_short(printed, "CalledOff")


def states(cluster: Cluster, run: str) -> list[str]:
    return [view["state"] for view in replicas(cluster, run)]


def phases(cluster: Cluster, run: str) -> list[str]:
    return [view["progress"]["phase"] for view in replicas(cluster, run)]


def replicas(cluster: Cluster, run: str) -> list[dict[str, Any]]:
    """A run's replicas; none before there is the run."""
    answer = cluster.http.get(f"/runs/{run}/replicas")
    return answer.json() if answer.is_success else []


def test_after_the_runs_end_a_replica_counts_what_the_run_has(cluster: Cluster) -> None:
    """Steps that no round has are in no parameter any more, and in no count."""
    settings = {**QUICK, "min_replicas": 1}
    trial = Trial(cluster.control_url, "stopped", 0, settings=settings)
    with joined(trial):
        trial.step(6)
        assert trial.replica.run_tokens == 6 * STEP_TOKENS
        cluster.post("/runs/stopped/stop")
        trial.step(1000)
        assert trial.replica.done
        assert trial.replica.run_tokens == trial.replica.committed_tokens
