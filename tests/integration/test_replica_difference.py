"""Replicas that pull differences: everyone holds the published value, bit for bit, at any time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from syncline import change
from syncline_proto.codec import Float32, codec_of
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, arrived, joined, published, together
from syncline_testing.waiting import wait_until

INT8 = {**QUICK, "min_replicas": 2, "codec": {"up": "int8", "down": "int8"}}
FRAGMENTS = 4


@pytest.fixture(params=["apart", "in-place"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How differences are added to an anchor: as large models' are, or as all others'."""
    monkeypatch.setattr(change, "LONG", 1 << 40 if request.param == "apart" else 1)
    return request.param


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each difference that was added to an anchor where that lies, its elements."""
    carry, landed = change.Change.carry, list[int]()

    def seen(its: change.Change, outs: Sequence[Float32]) -> None:
        carry(its, outs)
        landed.append(its.held.size)

    monkeypatch.setattr(change.Change, "carry", seen)
    return landed


def trial(cluster: Cluster, run: str, seed: int, **more: Any) -> Trial:
    return Trial(cluster.control_url, run, seed, settings=INT8 | more)


def round_of(trial: Trial) -> None:
    trial.step(4)
    trial.replica.finish()


def sees_all_in(cluster: Cluster, run: str, *trials: Trial) -> None:
    names = {trial.replica.name for trial in trials}
    everywhere = [names] * FRAGMENTS
    wait_until(lambda: arrived(cluster.sync_address, run) == everywhere, 30, f"{names} are in")


def check_equal(cluster: Cluster, run: str, *trials: Trial) -> int:
    """That all hold what is published; its revision."""
    values, revision = published(cluster.sync_address, run)
    for trial in trials:
        assert trial.replica.revision == revision
        for name, value in trial.parameters().items():
            assert np.array_equal(value.numpy(), values[name]), (trial.replica.name, name)
    return revision


def bytes_of_rounds(trial: Trial, count: int, *others: Trial) -> float:
    """What a pull of the model takes, over its bytes in fp32; on average of some rounds."""
    before = trial.replica.stats.bytes_down
    for _ in range(count):
        together(*(lambda t=t: round_of(t) for t in (trial, *others)))
    numel = sum(p.numel() for p in trial.model.parameters())
    return (trial.replica.stats.bytes_down - before) / (4 * numel * count)


def test_two_replicas_and_who_joins_them_hold_the_published_value(
    cluster: Cluster, way: str, landed: list[int]
) -> None:
    run = f"joiner-{way}"
    a, b, c = (trial(cluster, run, seed) for seed in range(3))
    with joined(a, b):
        for revision in (1, 2):
            assert bytes_of_rounds(a, 1, b) == pytest.approx(0.25, abs=0.02)
            assert check_equal(cluster, run, a, b) == revision
        with joined(c):
            assert check_equal(cluster, run, c) == 2
            first = threading.Thread(target=lambda: round_of(c))
            first.start()
            sees_all_in(cluster, run, c)
            together(lambda: round_of(a), lambda: round_of(b))
            first.join(20)
            assert check_equal(cluster, run, a, b, c) == 3
            assert bytes_of_rounds(c, 2, a, b) == pytest.approx(0.25, abs=0.02)
            assert check_equal(cluster, run, a, b, c) == 5
            assert c.replica.stats.stale == 0
    numel = sum(p.numel() for p in a.model.parameters())
    rehearsed = 3 * (codec_of(pb.CODEC_INT8).grain + 1)
    assert sum(landed) - rehearsed == (0 if way == "apart" else (2 * 5 + 3) * numel)


def test_who_missed_a_round_pulls_the_newest_whole_and_then_differences(
    cluster: Cluster, way: str
) -> None:
    run = f"late-{way}"
    early, late = (trial(cluster, run, seed, min_replicas=1) for seed in range(2))
    with joined(early, late):
        for _ in range(2):
            round_of(early)
        late.step(4)
        waiting = threading.Thread(target=late.replica.finish)
        waiting.start()  # late, and again at once
        sees_all_in(cluster, run, late)
        round_of(early)
        waiting.join(20)
        assert late.replica.stats.stale == FRAGMENTS
        assert check_equal(cluster, run, early, late) == 3
        assert bytes_of_rounds(late, 1, early) == pytest.approx(0.25, abs=0.02)
        assert check_equal(cluster, run, early, late) == 4


def test_the_codec_may_change_while_the_run_goes_on(cluster: Cluster, way: str) -> None:
    run = f"live-{way}"
    a, b = (trial(cluster, run, seed, codec={"up": "fp32", "down": "bf16"}) for seed in range(2))
    with joined(a, b):
        for down, size in (("int8", 0.25), ("fp32", 1.0), ("int8", 0.25)):
            patch = {"settings": {"codec": {"down": down}}}
            cluster.http.patch(f"/runs/{run}/settings", json=patch).raise_for_status()

            def changed(size: float = size) -> bool:
                took = bytes_of_rounds(a, 1, b)
                check_equal(cluster, run, a, b)
                return abs(took - size) < 0.02

            wait_until(changed, 30, f"{down} comes down")


def test_after_a_kill_they_go_on_from_what_they_hold(cluster: Cluster, way: str) -> None:
    run = f"kill-{way}"
    a, b = (trial(cluster, run, seed) for seed in range(2))
    with joined(a, b):
        bytes_of_rounds(a, 2, b)
        held = published(cluster.sync_address, run)[0]
        a.step(4)
        waiting = threading.Thread(target=a.replica.finish)
        waiting.start()
        sees_all_in(cluster, run, a)
        cluster.sync.kill()
        cluster.sync.start()
        again, revision = published(cluster.sync_address, run)
        assert revision == 2
        assert all(np.array_equal(again[name], value) for name, value in held.items())
        round_of(b)
        waiting.join(60)
        assert check_equal(cluster, run, a, b) == 3
        assert bytes_of_rounds(a, 2, b) == pytest.approx(0.25, abs=0.02)
        assert check_equal(cluster, run, a, b) == 5
