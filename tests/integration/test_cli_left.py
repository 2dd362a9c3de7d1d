"""A launch whose replicas are gone before its run's end: one kicked, one drained."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syncline.launch.client import OperatorClient
from syncline_proto.errors import ProcessFailed
from syncline_proto.rest import ReplicaState
from syncline_testing.launches import syncline
from syncline_testing.training import tiny_data, tiny_job, to_toml
from syncline_testing.waiting import wait_until
from syncline_testing.warm import Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing else ends with us")

WAIT_S = 60.0
ENDLESS = 1_000_000_000
PAGE = "The live page is at "
LEFT = "No replica is left at 0 % of the token budget; the same command goes on."


@contextmanager
def up(job: Path, *flags: str) -> Iterator[tuple[Program, OperatorClient]]:
    """A launch, and somebody who looks after its run."""
    with syncline("up", str(job), "--out", str(job.parent), "--json", *flags) as started:
        assert started.stderr is not None
        page = next(line for line in started.stderr if line.startswith(PAGE))
        with OperatorClient(page.removeprefix(PAGE).strip()) as client:
            yield started, client


def until_training(client: OperatorClient, names: set[str], *, revision: int) -> None:
    def there() -> bool:
        alive = {r.replica for r in client.replicas("tiny") if r.state is ReplicaState.ALIVE}
        return alive == names and client.run("tiny").revision >= revision

    wait_until(lambda: bool(client.runs()), WAIT_S, "the run is there")
    wait_until(there, WAIT_S, f"{names} train")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_run_that_everybody_left_is_told_as_it_stands(tmp_path: Path) -> None:
    run = {"sync_every": 2, "timeouts": {"lease": 2.0}}
    job = tmp_path / "job.toml"
    job.write_text(to_toml(tiny_job(tiny_data(tmp_path / "tokens"), steps=ENDLESS, run=run)))
    with up(job, "--keep") as (started, client):
        until_training(client, {"replica-0", "replica-1"}, revision=2)
        client.kick("tiny", "replica-1")
        said: list[str] = []
        assert started.stderr is not None
        for line in started.stderr:
            said.append(line)
            if line.startswith("replica-1 was kicked"):
                client.drain("tiny", "replica-0")
            if "stays at" in line:
                break
        stands = client.run("tiny")
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=WAIT_S)
    err = "".join(said) + err
    assert started.returncode == ProcessFailed.exit_code, err
    assert err.count("replica-1 was kicked") == 1 and "starting it again" not in err
    assert f"error: {LEFT}\n" in err
    told = json.loads(out)
    assert (told["failed"], told["kicked"]) == ([], ["replica-1"])
    assert told["replicas"]["replica-0"]["reason"] == "drained"
    assert (told["revision"], told["tokens"]) == (stands.revision, stands.committed_tokens)
    assert told["rounds"] == told["revision"] >= 2
    assert told["held_out_merged"] is None and told["has_ended"] is False


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_launch_has_as_many_replicas_as_are_wanted(tmp_path: Path) -> None:
    run = {"sync_every": 2, "timeouts": {"lease": 2.0}, "max_replicas": 3}
    job = tmp_path / "job.toml"
    job.write_text(to_toml(tiny_job(tiny_data(tmp_path / "tokens"), steps=ENDLESS, run=run)))
    with up(job) as (started, client):
        until_training(client, {"replica-0", "replica-1"}, revision=2)
        client.scale("tiny", 1)
        until_training(client, {"replica-0"}, revision=3)
        line = next(line for line in started.stderr or () if "leaves" in line)
        assert line == "replica-1 leaves: 1 replica is wanted.\n"
        client.scale("tiny", 3)
        # replica-1's name is free once its process has ended, and another is taken before that.
        wait_until(lambda: client.run("tiny").replicas_taking_part == 3, WAIT_S, "three take part")
        left = [event.message for event in client.events("tiny", None, 100, "replica.left")]
        client.move_run("tiny", "stop")
        out, err = started.communicate(timeout=WAIT_S)
    assert started.returncode == 0, err
    assert ": 3 replicas are wanted." in err
    assert len(left) == 1 and left[0].startswith("replica-1 left")
    assert {"replica-0", "replica-2"} < json.loads(out)["replicas"].keys()
    assert not json.loads(out)["failed"]
