"""The benchmarks of what training waits for, at sizes that say nothing: they tell all they owe."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig

import exposed
import overhead
from syncline.hooks import Hooks
from syncline_testing.cluster import Cluster


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="what was computed is read from /proc")
def test_what_hides_a_round_is_measured_in_four_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {"EVERY": 4, "STEP_S": 0.02, "WARM_UP": 0, "ROUNDS": 1}.items():
        monkeypatch.setattr(exposed, name, small)
    ways = {"overlap": {"overlap_steps": 3}, "streaming": {"overlap_steps": 1}}
    monkeypatch.setattr(exposed, "WAYS", exposed.WAYS | ways)
    asked = exposed.options().parse_args(["--network", "loopback", "--parameters", "1000"])
    told = json.loads(json.dumps(exposed.measured(asked)))
    whole, waits, hooks = (
        {way: told.pop(way) for way in exposed.WAYS},
        told.pop("waits"),
        told.pop("hooks"),
    )
    for shares in (whole, waits, hooks, told.pop("unpaced")):
        assert shares.keys() == exposed.WAYS.keys()
        assert all(0.0 <= share <= 1.0 for share in shares.values())
    assert all(hooks.values()), "a round is some work"
    assert whole == {way: waits[way] + hooks[way] for way in exposed.WAYS}
    assert told["compute_share"] > 0.0
    assert told["interval_bytes"] > 1000, "int8, with its scales"
    assert told == {
        "compute_share": told["compute_share"],
        "interval_bytes": told["interval_bytes"],
        "link_share": 0.0,
        "network": "loopback",
        "parameters": 1000,
        "codec": "int8",
        "sync_every": 4,
        "step_s": 0.02,
    }


def test_what_hooks_cost_is_measured_beside_steps_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hooks, "install", Hooks.install)  # it stands between; not for long
    monkeypatch.setattr(overhead, "BLOCK", 2)
    small = LlamaConfig(
        vocab_size=overhead.VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    monkeypatch.setattr(overhead, "CONFIG", small)
    with Cluster(tmp_path) as cluster:
        told = json.loads(json.dumps(overhead.measured(cluster.control_url, 3, "cpu")))
    assert told.keys() == {"hook_share", "step_ratio", "steps", "step_s", "device"}
    assert 0.0 < told["hook_share"] < 1.0
    assert 0.0 < told["step_ratio"] < math.inf
    assert told["step_s"] > 0.0
    assert (told["steps"], told["device"]) == (4, "cpu"), "in whole blocks"
