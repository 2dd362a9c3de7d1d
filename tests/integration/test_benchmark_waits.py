"""The benchmarks of what training waits for, at sizes that say nothing: they tell all they owe."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import exposed
import overhead
from syncline.hooks import Hooks
from syncline_testing.cluster import Cluster
from syncline_testing.two_ranks import two_ranks

TINY = {"hidden": 16, "intermediate": 16, "layers": 1, "heads": 1}
RANK = """
import json
from dataclasses import replace
import overhead

overhead.BLOCK = 2
overhead.SIZES["tiny"] = replace(overhead.SMALL, **{tiny})
print(json.dumps(overhead.measured({control!r}, 3, "cpu", care=True, model="tiny")))
"""


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
        "device": "cpu",
    }


@pytest.mark.parametrize("care", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_hooks_cost_is_measured_beside_steps_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, care: bool
) -> None:
    install = Hooks.install
    monkeypatch.setattr(overhead, "BLOCK", 2)
    monkeypatch.setitem(overhead.SIZES, "tiny", replace(overhead.SMALL, **TINY))
    with Cluster(tmp_path) as cluster:
        told = overhead.measured(cluster.control_url, 3, "cpu", care, "tiny")
    assert Hooks.install is install, "it stands between, and no longer"
    assert (told["care"] is not None) == care
    check_cost(json.loads(json.dumps(told)), 1)


@pytest.mark.long
def test_what_it_costs_several_ranks_is_measured_too(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    with Cluster(tmp_path) as cluster:
        program = RANK.format(tiny=TINY, control=cluster.control_url)
        told = [json.loads(text.splitlines()[-1]) for text in two_ranks(ranks, program)]
    for one in told:
        check_cost(one, 2)
    assert told[0]["hook_share"] == told[1]["hook_share"]


def check_cost(told: dict[str, Any], ranks: int) -> None:
    care = told.pop("care")
    check_parts(told, ranks, {"batch", "hooks", "skips", "synchronize", "report"})
    if care is not None:
        check_parts(care, ranks, {"batch", "hooks", "care", "synchronize", "report"})
        assert care.keys() == {"hook_share", "step_ratio"}
    assert told["step_s"] > 0.0
    figures = {key: told[key] for key in ("hook_share", "step_ratio", "step_s")}
    figures |= {"model": "tiny", "ranks": ranks, "device": "cpu"}
    assert told == figures | {"steps": 4}, "in whole blocks"


def check_parts(told: dict[str, Any], ranks: int, names: set[str]) -> None:
    parts = told.pop("parts")
    assert parts.keys() == names
    # But for the batch: that is less what another loop's takes.
    assert all(share > 0.0 for name, share in parts.items() if name != "batch")
    assert sum(parts.values()) <= told["hook_share"] + 1e-9 < 1.0, "of the worst rank"
    assert told["hook_share"] == pytest.approx(sum(parts.values())) or ranks > 1
    assert 0.0 < told["step_ratio"] < math.inf
