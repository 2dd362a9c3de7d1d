"""Replicas whose codec loses most of what they push: it comes later, and nothing comes twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from syncline.session import Session
from syncline_proto.codec import CODEC_BY_NAME, Float32
from syncline_proto.codec import published as decoded
from syncline_proto.settings import CodecName
from syncline_testing.by_hand import ByHand
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, arrived, joined, published, together
from syncline_testing.scraped import lateness
from syncline_testing.waiting import wait_until

SIZE = 500
LOCAL = {**QUICK, "strategy": "local-sgd", "sync_every": 1}
SOON = {"lease": 3.0, "round_deadline": 4.0}
AGED: dict[str, Any] = {
    "min_replicas": 1,
    "expected_replicas": 2,
    "quorum": 1,
    "sync_every": 4,
    "timeouts": {"lease": 30.0, "round_deadline": 60.0},
}
"""The first round has both; any other closes with whoever pushes in time."""


class Slope(nn.Module):
    """A plane: each step of SGD goes down by its gradient, which is the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


class Walker(Trial):
    """A replica that descends by the same in each step: each round's progress is ``gradient``."""

    def __init__(self, cluster: Cluster, run: str, seed: int, settings: dict[str, Any]) -> None:
        super().__init__(
            cluster.control_url,
            run,
            seed,
            model=Slope(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            settings=settings,
        )
        self.gradient = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))

    def step(self, count: int = 1) -> Walker:
        for _ in range(count):
            self.replica.count_tokens(1)
            self.model(self.gradient).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    @property
    def weight(self) -> Float32:
        return dict(self.model.named_parameters())["weight"].detach().numpy()

    def round(self) -> None:
        self.step()
        self.replica.finish()

    @property
    def fallen(self) -> Float32:
        """By how much it is below where it began."""
        return -self.weight

    @property
    def residual(self) -> Float32:
        session = self.replica._session
        assert isinstance(session, Session)
        held = session._rounds._landing.residuals._held
        return held.get(0, np.zeros(SIZE, np.float32))


def settings(codec: CodecName, **more: Any) -> dict[str, Any]:
    return {**LOCAL, "min_replicas": 2, "codec": {"up": codec, "down": "fp32"}, **more}


@pytest.mark.parametrize(
    ("codec", "rounds", "better"),
    [("int4", 24, 10), pytest.param("topk", 160, 3, marks=pytest.mark.long)],
)
def test_what_a_round_loses_comes_in_later_ones(
    cluster: Cluster, codec: CodecName, rounds: int, better: int
) -> None:
    run = f"later-{codec}"
    a, b = (Walker(cluster, run, seed, settings(codec)) for seed in (1, 2))
    with joined(a, b):
        for count in range(1, rounds + 1):
            together(a.round, b.round)
            values, revision = published(cluster.sync_address, run)
            assert revision == count
            for walker in (a, b):
                assert walker.weight.tobytes() == values["weight"].tobytes()
        given = (a.gradient + b.gradient).double().numpy() / 2 * rounds
        owed = (a.residual.astype(np.float64) + b.residual) / 2
        np.testing.assert_allclose(a.fallen + owed, given, rtol=0, atol=rounds * 1e-4)
        # The same loss again in each round, without feedback.
        number = CODEC_BY_NAME[codec]
        said = sum(decoded(walker.gradient.numpy(), number).astype(np.float64) for walker in (a, b))
        without = np.linalg.norm(given - said / 2 * rounds)
        assert np.linalg.norm(given - a.fallen) < without / better


@pytest.mark.parametrize("codec", [pytest.param("int4", marks=pytest.mark.long), "topk"])
def test_a_late_push_is_counted_once_and_its_residual_goes_with_the_next(
    cluster: Cluster, codec: CodecName
) -> None:
    run = f"late-{codec}"
    wanted = settings(codec, min_replicas=1, expected_replicas=2, timeouts=SOON)
    early, late = (Walker(cluster, run, seed, wanted) for seed in (1, 2))
    early.gradient = torch.zeros(SIZE)  # so what is merged is half of what the late one pushes
    with joined(early, late):
        for _ in range(2):
            together(early.round, late.round)
        before = late.residual.copy()
        assert before.any()
        early.round()  # at the deadline, without the late one
        late.step()
        waiting = threading.Thread(target=late.replica.finish)
        waiting.start()  # late, and again at once: this is the round that the early one must close
        wait_until(lambda: arrived(cluster.sync_address, run) == [{"replica-2"}], 20, "it is in")
        assert np.array_equal(late.residual, before), "restored"
        early.round()
        waiting.join(20)
        assert late.replica.stats.stale == 1
        for count in (3, 4):
            made = count * late.gradient.double().numpy()
            np.testing.assert_allclose(2 * late.fallen + late.residual, made, rtol=0, atol=1e-4)
            together(early.round, late.round)


@pytest.mark.parametrize("codec", [pytest.param("int4", marks=pytest.mark.long), "topk"])
@pytest.mark.parametrize("is_forgotten", [False, True], ids=["counts", "is forgotten"])
def test_what_an_aged_push_lost_is_owed_once_whether_it_counts_or_is_left_out(
    tmp_path: Path, codec: CodecName, is_forgotten: bool
) -> None:
    """Pushes of 4 steps each, the second one late: by what the codec left of them, step by step."""
    with Cluster(tmp_path) as cluster:
        late = Walker(cluster, "aged", 1, {**settings(codec), **AGED})
        late.replica.start()
        with ByHand(cluster, "aged") as other:
            late.step(4)
            goes_on(other, 1)
            late.step(1)
            first = late.residual.astype(np.float64)
            goes_on(other, 2)
            late.step(4)  # late: it counts in 3, and the last step has merged it already
            second = late.residual.astype(np.float64)
            assert late.replica.stats.aged == 1 and late.replica.revision == 2
            four = 4 * late.gradient.double().numpy()
            fallen = (four - first) / 2
            if is_forgotten:
                cluster.sync.kill()
                cluster.sync.start()
                goes_on(other, 3)  # from 4 on it is too old
            else:
                share = goes_on(other, 3)["replica-1", 1]
                fallen += share * (four + first - second)
                assert_fallen(cluster, fallen)
            goes_on(other, 4)
            late.step(4)  # late by two revisions
            third = late.residual.astype(np.float64)
            inside = goes_on(other, 5)
            assert {age for name, age in inside if name == "replica-1"} == {2}
            fallen += inside["replica-1", 2] * (four + second - third)
            assert_fallen(cluster, fallen)
            assert first.any() and second.any() and third.any()
            late.replica.close()


def goes_on(other: ByHand, revision: int) -> dict[tuple[str, int], float]:
    """A round that the other one closes with zeros: the weight of each push, by its age."""
    other.push(0, revision - 1)
    found = other.published(0, revision).contributions
    return {(c.replica, c.age): c.weight for c in found}


def assert_fallen(cluster: Cluster, fallen: Float32 | npt.NDArray[np.float64]) -> None:
    values, _ = published(cluster.sync_address, "aged")
    np.testing.assert_allclose(-values["weight"], fallen, rtol=0, atol=1e-4)


def test_a_push_that_was_lost_in_a_crash_comes_again_and_its_loss_is_owed_once(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        a, b = (Walker(cluster, "crash", seed, settings("topk")) for seed in (1, 2))
        with joined(a, b):
            together(a.round, b.round)
            a.step()
            waiting = threading.Thread(target=a.replica.finish)
            waiting.start()
            arrivals = [{"replica-1"}]
            wait_until(lambda: arrived(cluster.sync_address, "crash") == arrivals, 20, "it is in")
            cluster.sync.kill()
            cluster.sync.start()
            wait_until(lambda: arrived(cluster.sync_address, "crash") == arrivals, 60, "again")
            b.round()
            waiting.join(20)
            assert a.replica.stats.stale == b.replica.stats.stale == 0
            assert a.replica.revision == b.replica.revision == 2
            together(a.round, b.round)
            given = 3 * (a.gradient + b.gradient).double().numpy() / 2
            owed = (a.residual.astype(np.float64) + b.residual) / 2
            np.testing.assert_allclose(a.fallen + owed, given, rtol=0, atol=1e-4)


def test_what_was_excluded_takes_its_residual_along(cluster: Cluster) -> None:
    a, b = (Walker(cluster, "excluded", seed, settings("int4")) for seed in (1, 2))
    with joined(a, b):
        together(a.round, b.round)
        assert a.residual.any() and b.residual.any()
        a.weight[7] = np.nan
        together(a.round, b.round)
        assert a.replica.stats.anomalous == 1
        assert lateness(a.replica) == {"anomalous_pushes_total": 1}
        assert b.residual.any() and not a.residual.any()
        together(a.round, b.round)
        assert a.replica.stats.anomalous == 1
        assert a.residual.any() and np.isfinite(a.residual).all()


def test_a_new_codec_pays_what_the_old_one_owed_and_a_new_life_owes_nothing(
    cluster: Cluster,
) -> None:
    walker = Walker(cluster, "anew", 1, settings("topk", min_replicas=1))
    with joined(walker):
        walker.round()
        assert walker.residual.any()
        patch = {"settings": {"codec": {"up": "fp32"}}}
        cluster.http.patch("/runs/anew/settings", json=patch).raise_for_status()
        wait_until(lambda: _adopted(walker), 20, "the replica has the new codec")
        walker.round()
        assert not walker.residual.any()
        made = walker.replica.revision * walker.gradient.double().numpy()
        np.testing.assert_allclose(walker.fallen, made, rtol=0, atol=1e-3)
    again = Walker(cluster, "anew", 1, settings("topk", min_replicas=1))
    with joined(again):
        assert not again.residual.any()


def _adopted(walker: Walker) -> bool:
    walker.round()
    return walker.replica.settings.codec.up == "fp32"
