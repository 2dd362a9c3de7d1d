"""The benchmarks of kills and of slow replicas, in short: nothing is lost, and they tell all."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

import storm
import stragglers

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="what was computed is read from /proc"),
]


def test_a_short_storm_loses_no_token_and_counts_none_twice() -> None:
    asked = argparse.Namespace(minutes=0.4, every=5, seed=0)
    told = json.loads(json.dumps(storm.measured(asked)))
    assert (told["tokens_lost"], told["tokens_twice"]) == (0, 0)
    assert all(told[one] > 0 for one in ("kills", "revisions", "committed_tokens", "efficiency"))
    assert told["longest_wait_s"] >= 0.0 and told["compute_share"] > 0
    assert {*told} >= {"efficiency", "longest_wait_s", "lease_s", "tokens_torn", "late", "seed"}


def test_what_a_slow_replica_costs_is_measured_in_four_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {way: how and {**how, **QUICK[way]} for way, how in stragglers.WAYS.items()}
    monkeypatch.setattr(stragglers, "WAYS", quick)
    plot = tmp_path / "plot.html"
    told = stragglers.measured(argparse.Namespace(seconds=3, plot=plot))
    ways = {"a_edit", "async", "edit", "ddp"}
    assert told["losses"].keys() == ways
    assert all(told[way] > 0 and told["losses"][way] > 0 for way in ways)
    assert told["compute_share"] > 0
    page = plot.read_text()
    assert "loss against tokens" in page and "loss against seconds" in page


QUICK = {
    "a-edit": {"sync_seconds": 1.0},
    "async": {"sync_seconds": 1.0, "warmup_steps": 2},
    "edit": {"sync_every": 4},
}
"""Rounds a second long, about."""
