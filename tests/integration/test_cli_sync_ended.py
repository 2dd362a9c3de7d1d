"""A sync service that was ended: known to be away at once, and how to start it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syncline.cli.app import run
from syncline_testing.cluster import Cluster


@pytest.mark.long
def test_a_service_that_was_ended_is_away_at_once_with_the_way_to_start_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.sync.stop()
        at = ["--control", cluster.control_url]
        assert run(["doctor", "--json", *at]) == 1
        checks = json.loads(capsys.readouterr().out)["checks"]
        (found,) = [one for one in checks if one["check"] == "sync service"]
        assert found["what"].endswith("is away: it has ended, or is not heard of any more")
        assert (
            f"(syncline-sync --control {cluster.control_url} --data FOLDER ...)" in found["advice"]
        )

        def told() -> str:
            assert run(["status", *at]) == 0
            return " ".join(capsys.readouterr().out.split())

        assert "is away; start it again before the next run." in told()
        cluster.post("/runs", {"name": "goes-on"})
        said = "is away, and rounds of its fragments wait for that; start it again."
        assert said in told()
        cluster.post("/runs/goes-on/stop")
        assert said not in told()
        (ended,) = cluster.get("/events?kind=sync.ended")
        assert ended["message"].endswith("has ended.")


def test_a_service_that_was_killed_just_now_is_said_to_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.sync.kill()
        assert run(["doctor", "--json", "--control", cluster.control_url]) == 1
        checks = json.loads(capsys.readouterr().out)["checks"]
        (found,) = [one for one in checks if one["check"] == "sync service"]
        assert found["what"].startswith("nobody listens at the address of ")
        assert found["advice"].startswith("It may just have ended: start it again on its own ")
        assert (
            f"(syncline-sync --control {cluster.control_url} --data FOLDER ...)" in found["advice"]
        )
