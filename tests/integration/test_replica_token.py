"""A token that was right, and is refused by a service that was started again with another."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.link import Link
from syncline_proto.errors import Forbidden
from syncline_proto.settings import TimeoutSettings
from syncline_testing.cluster import Cluster, Service
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, together
from syncline_testing.waiting import wait_until

EVERY = QUICK["sync_every"]


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that is yet to start, and asks for the token that replicas here have."""
    monkeypatch.setenv("SYNCLINE_TOKEN", "right")
    cluster = Cluster(tmp_path)
    for service in (cluster.control, cluster.sync):
        service.extend("--token", "right")
    cluster.http.headers["authorization"] = "Bearer right"
    return cluster


@pytest.mark.parametrize("who", ["sync", "control"])
def test_a_mistyped_token_at_a_restart_ends_no_replica(guarded: Cluster, who: str) -> None:
    """Of the sync service, while there is no control plane that would tell it; or of that."""
    patient = {"min_replicas": 1, "timeouts": {"lease": 16.0, "round_deadline": 60.0}}
    trial = Trial(guarded.control_url, "one", 0, settings={**QUICK, **patient})
    service: Service = getattr(guarded, who)

    def said(event: str, word: str = "") -> list[Any]:
        return [line for line in logs if line["event"] == event and word in line.get("why", "")]

    def restarts() -> None:
        service.kill()
        service.extend("--token", "wrong")  # the last one counts
        service.start()
        wait_until(lambda: bool(said(f"{who}.away", "token")), 30, "it is said why")
        service.kill()
        service.extend("--token", "right")
        service.start()
        wait_until(lambda: bool(said(f"{who}.back")), 30, "it is back")

    with guarded, capture_logs() as logs, joined(trial):
        trial.step(EVERY)
        if who == "sync":
            guarded.control.kill()
        together(lambda: trial.step(EVERY), restarts)
        if who == "sync":
            guarded.control.start()
        trial.replica.finish()
        assert trial.replica.committed_tokens == 2 * EVERY * STEP_TOKENS
    (away, *_) = said(f"{who}.away", "token")
    if who == "sync":
        assert away["why"].endswith(
            "refuses the token that it took before; start it with that one (SYNCLINE_SYNC_TOKEN)."
        )


def test_who_comes_with_a_wrong_token_is_told_so_at_once(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded:
        monkeypatch.setenv("SYNCLINE_TOKEN", "wrong")
        trial = Trial(guarded.control_url, "one", 0, settings=QUICK)
        with pytest.raises(Forbidden):
            trial.replica.start()
        for token, why in (("wrong", "has another token"), (None, "asks for a token")):
            link = Link(guarded.sync_address, TimeoutSettings(), token)
            with closing(link), pytest.raises(Forbidden, match=why):
                link.status("one")
