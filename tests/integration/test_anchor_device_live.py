"""Anchors on the model's device, in a run whose ``codec.down`` changes while it goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syncline.anchors import Anchors
from syncline.session import Session
from syncline_testing.cluster import Cluster
from syncline_testing.composed import streamed
from syncline_testing.replicas import QUICK, Trial, joined, published, together
from syncline_testing.waiting import wait_until

SETTINGS: dict[str, Any] = {**QUICK, "min_replicas": 2, "codec": {"up": "int8", "down": "bf16"}}
ROUND = 4
"""Inner steps."""


def test_copies_of_anchors_are_kept_while_differences_come_down(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each anchor is what is published, before, while and after."""
    monkeypatch.setattr("syncline.life.carrier_of", streamed)
    how: dict[str, Any] = {"settings": SETTINGS, "anchor_device": "model"}
    a, b = (Trial(cluster.control_url, "beside", seed, **how) for seed in range(2))

    def round_of(trial: Trial) -> None:
        trial.step(ROUND)
        trial.replica.finish()

    def takes() -> float:
        """A round's bytes down, over the model's in fp32; both hold what it published."""
        before = a.replica.stats.bytes_down
        together(lambda: round_of(a), lambda: round_of(b))
        for trial in (a, b):
            check_anchors(cluster, trial)
        numel = sum(p.numel() for p in a.model.parameters())
        return (a.replica.stats.bytes_down - before) / (4 * numel)

    with joined(a, b):
        for down, size in (("bf16", 0.5), ("int8", 0.25), ("bf16", 0.5), ("int8", 0.25)):
            patch = {"settings": {"codec": {"down": down}}}
            cluster.http.patch("/runs/beside/settings", json=patch).raise_for_status()
            kept = {down == "int8"}

            def changed(size: float = size, kept: set[bool] = kept) -> bool:
                took = takes()
                return copies(a) == copies(b) == kept and abs(took - size) < 0.02

            wait_until(changed, 30, f"{down} comes down")


def anchors_of(trial: Trial) -> Anchors:
    """They lie on the device, all of them."""
    session = trial.replica._session
    assert isinstance(session, Session)
    anchors = session._rounds._anchors
    assert all(room is not None for room in anchors._rooms)
    return anchors


def copies(trial: Trial) -> set[bool]:
    """Whether one is kept of each anchor."""
    anchors = anchors_of(trial)
    return {anchors.held(fragment) is not None for fragment in range(len(anchors.shards))}


def check_anchors(cluster: Cluster, trial: Trial) -> None:
    """That they are what is published, as the model is, and their copies too."""
    anchors, (values, revision) = anchors_of(trial), published(cluster.sync_address, "beside")
    assert trial.replica.revision == revision
    for name, value in trial.parameters().items():
        assert np.array_equal(value.numpy(), values[name]), name
    for fragment in range(len(anchors.shards)):
        anchor = anchors.value(fragment)
        assert np.array_equal(anchor, anchors.current(fragment).here())
        if (held := anchors.held(fragment)) is not None:
            assert np.array_equal(anchor.view(np.uint32) >> 16, held.bits)
