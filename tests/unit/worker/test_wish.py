"""What a replica is asked to be: by its script, job or callback before its environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from syncline.integrations.guest import GuestCallback
from syncline.replica import Replica
from syncline.settings import AnchorDevice
from syncline.train.config import JobConfig
from syncline.train.loop import Trainer
from syncline.train.ranks import RankGroup
from syncline.wish import Wish, wished
from syncline_proto.errors import ConfigError
from syncline_testing.training import Recorder, tiny_data, tiny_job, to_toml

NOBODY = "127.0.0.1:9"


def test_where_anchors_lie_the_script_says_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wish(said: str | None = None) -> Wish | None:
        return wished(NOBODY, "run", "one", None, {}, lambda run, job: None, said)

    assert (own := wish()) and own.anchor_device == "cpu"
    monkeypatch.setenv("SYNCLINE_ANCHOR_DEVICE", "model")
    assert (own := wish()) and own.anchor_device == "model"
    assert (own := wish("cpu")) and own.anchor_device == "cpu"
    monkeypatch.setenv("SYNCLINE_ANCHOR_DEVICE", "gpu")
    with pytest.raises(ConfigError, match='anchor_device is "gpu"; it must be "cpu" or "model"'):
        wish()


def anchors_of(replica: Replica | None) -> AnchorDevice:
    """Where it was asked to keep them; it has joined nothing."""
    assert replica is not None and replica._wish is not None
    return replica._wish.anchor_device


@pytest.mark.parametrize("by_set", [False, True])
def test_where_a_job_wants_its_anchors_its_replica_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_set: bool
) -> None:
    """As the file says it, or the command line."""
    monkeypatch.setenv("SYNCLINE_CONTROL", NOBODY)
    monkeypatch.delenv("SYNCLINE_ANCHOR_DEVICE", raising=False)
    section = {} if by_set else {"anchor_device": "model"}
    path = tmp_path / "job.toml"
    path.write_text(to_toml(tiny_job(tiny_data(tmp_path / "tokens"), steps=8, train=section)))
    job = JobConfig.load(path, ["train.anchor_device=model"] if by_set else [])
    assert anchors_of(Trainer(job, RankGroup(), Recorder(), replica="one").replica) == "model"


class Refused(Exception):
    """Before it joins."""


def refuse() -> None:
    raise Refused


@pytest.mark.parametrize("said", ["cpu", "model"])
def test_where_a_callback_wants_its_anchors_its_replica_keeps_them(
    monkeypatch: pytest.MonkeyPatch, said: AnchorDevice
) -> None:
    monkeypatch.setenv("SYNCLINE_ANCHOR_DEVICE", "model" if said == "cpu" else "cpu")
    callback, model = GuestCallback(control=NOBODY, anchor_device=said), nn.Linear(1, 1)
    with pytest.raises(Refused):
        callback._guest.begin(model, torch.optim.SGD(model.parameters()), refuse)
    assert anchors_of(callback.replica) == said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"run": 3}, "^The run name 3 must be"),
        ({"name": 5}, "^The replica name 5 must be"),
        ({"control": 8500}, "^The control plane's address 8500 cannot be used"),
        ({"join_ramp_steps": "2"}, "^join_ramp_steps is '2'"),
    ],
    ids=lambda one: "" if isinstance(one, str) else next(iter(one)),
)
def test_what_is_no_text_is_named(given: dict[str, object], told: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=told):
        Replica(model, torch.optim.SGD(model.parameters()), **given)  # pyright: ignore[reportArgumentType]
