"""Training that goes on while rounds are under way: nothing of it is lost, and all agree."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from syncline_proto.codec import Float32
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    DEVICE,
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    joined,
    published,
    together,
)

ALONE = {**QUICK, "strategy": "local-sgd"}
ROUNDS, EVERY = 4, 4


class Slopes(nn.Module):
    """Planes: a step goes down by gradients that are the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(5))
        self.to(DEVICE)

    def forward(self, gradients: Tensor) -> Tensor:
        weights = [cast(nn.Linear, block)(torch.eye(8, device=DEVICE)) for block in self.blocks]
        return (torch.stack(weights) * gradients).sum()


def descended(cluster: Cluster, run: str, **how: Any) -> tuple[Trial, float]:
    """A replica that went down alone, and how far it is from where it went without a run.

    In ulps of each element by itself, where it was largest on its way.
    """
    slopes: Any = Slopes()
    trial = Trial(
        cluster.control_url,
        run,
        0,
        settings=ALONE | how,
        model=slopes,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )
    bare = Slopes()
    alone = torch.optim.SGD(bare.parameters(), lr=0.5)
    dice = torch.Generator().manual_seed(1)
    with joined(trial):
        way = [values_of(bare)]
        for _ in range(ROUNDS * EVERY):
            gradients = torch.randn(5, 8, 8, generator=dice).to(DEVICE) / 50
            trial.replica.count_tokens(STEP_TOKENS)
            for model, optimizer in ((slopes, trial.optimizer), (bare, alone)):
                model(gradients).backward()
                optimizer.step()
                optimizer.zero_grad()
            way.append(values_of(bare))
        trial.replica.finish()
    ulps = np.spacing(np.abs(way).max(0))
    return trial, float((np.abs(values_of(slopes) - way[-1]) / ulps).max())


def values_of(model: nn.Module) -> Float32:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy()


@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.long), 10])
@pytest.mark.parametrize("overlap", range(EVERY + 1))
def test_one_replica_trains_as_if_nothing_had_been(
    cluster: Cluster, overlap: int, groups: int
) -> None:
    """With outer lr 1 and fp32 both ways, each element within an ulp of each round."""
    how = {"overlap_steps": overlap, "fragment_groups": groups}
    trial, ulps = descended(cluster, f"alone-{overlap}-{groups}", **how)
    assert ulps <= ROUNDS
    assert trial.replica.stats.rounds == ROUNDS
    assert trial.replica.committed_tokens == ROUNDS * EVERY * STEP_TOKENS


def test_streaming_in_one_group_without_overlap_is_diloco_bit_for_bit(cluster: Cluster) -> None:
    merged: list[dict[str, Any]] = []
    for strategy in ("diloco", "streaming"):
        how = {**QUICK, "strategy": strategy, "min_replicas": 2, "outer": {"lr": 0.7}}
        if strategy == "streaming":
            how |= {"fragment_groups": 1, "overlap_steps": 0}
        a, b = (
            Trial(cluster.control_url, f"as-{strategy}", seed, settings=how, model=TinyModel())
            for seed in range(2)
        )
        with joined(a, b):
            together(*(lambda t=t: t.step(ROUNDS * EVERY) for t in (a, b)))
        values, revision = published(cluster.sync_address, f"as-{strategy}")
        assert revision == ROUNDS
        merged.append(values)
    for name, value in merged[0].items():
        assert np.array_equal(value, merged[1][name]), name


@pytest.mark.parametrize("groups", [1, 10])
def test_one_eager_replica_trains_as_if_nothing_had_been(cluster: Cluster, groups: int) -> None:
    how = {"overlap_steps": EVERY, "overlap_eager": True, "fragment_groups": groups}
    _, ulps = descended(cluster, f"eager-alone-{groups}", **how)
    assert ulps <= 2 * ROUNDS, "once where it is pushed, and once where it is merged"


def test_eager_replicas_train_on_from_their_own_outer_step(cluster: Cluster) -> None:
    how = {
        **QUICK,
        "strategy": "diloco",
        "min_replicas": 2,
        "overlap_steps": EVERY,
        "overlap_eager": True,
    }
    a, b = (Trial(cluster.control_url, "eager", seed, settings=how) for seed in range(2))
    with joined(a, b):
        first, _ = published(cluster.sync_address, "eager")
        together(lambda: a.step(EVERY), lambda: b.step(EVERY))
        ahead = [trial.parameters() for trial in (a, b)]
        together(a.replica.finish, b.replica.finish)
        merged, revision = published(cluster.sync_address, "eager")
        assert revision == 1
        for name, value in merged.items():
            start = torch.from_numpy(first[name])
            # Momentum is 0 before: each stands half way to where its push alone would lead, and
            # both halves together are the outer step.
            both = sum((one[name] - start for one in ahead), torch.zeros(()))
            torch.testing.assert_close(torch.from_numpy(value) - start, both, rtol=0, atol=1e-5)
        for trial in (a, b):
            for name, value in trial.parameters().items():
                torch.testing.assert_close(value, torch.from_numpy(merged[name]), rtol=0, atol=1e-6)


STREAMING = {**QUICK, "min_replicas": 2, "strategy": "streaming", "overlap_steps": 2}


@pytest.mark.parametrize("mix", [None, 0.5])
@pytest.mark.parametrize("groups", [1, pytest.param(3, marks=pytest.mark.long), 10])
@pytest.mark.parametrize("overlap", [2, EVERY])
def test_two_replicas_end_with_the_same_value(
    cluster: Cluster, overlap: int, groups: int, mix: float | None
) -> None:
    run = f"two-{overlap}-{groups}-{mix is None}".lower()
    budget = 2 * ROUNDS * EVERY * STEP_TOKENS
    how = {
        **STREAMING,
        "overlap_steps": overlap,
        "overlap_mix": mix,
        "fragment_groups": groups,
        "token_budget": budget,
    }
    a, b = (Trial(cluster.control_url, run, seed, settings=how) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(100), lambda: b.step(100))
        assert a.replica.done and b.replica.done
        theirs = b.parameters()
        assert all(torch.equal(theirs[name], p) for name, p in a.parameters().items())
        # With groups all push once more when they know, a step after an overlap at the latest.
        more = (overlap + 1) * (groups > 1)
        most = budget + 2 * more * STEP_TOKENS
        assert budget <= a.replica.committed_tokens == b.replica.committed_tokens <= most
        # Nobody trained further than an overlap beyond what is committed.
        beyond = max(overlap, more)
        assert all(t.replica.inner_step <= ROUNDS * EVERY + beyond for t in (a, b))
    assert cluster.get(f"/runs/{run}")["state"] == "finished"


@pytest.mark.parametrize("is_eager", [False, True])
def test_who_has_not_trained_on_holds_the_published_value_bit_for_bit(
    cluster: Cluster, is_eager: bool
) -> None:
    how = {**STREAMING, "overlap_steps": EVERY, "overlap_eager": is_eager, "fragment_groups": 1}
    run = f"still-{is_eager}".lower()
    a, b = (Trial(cluster.control_url, run, seed, settings=how) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(EVERY), lambda: b.step(EVERY))
        together(a.replica.finish, b.replica.finish)
        value, revision = published(cluster.sync_address, run)
        assert revision == 1
        for trial in (a, b):
            assert all((value[name] == p.numpy()).all() for name, p in trial.parameters().items())


def test_what_is_trained_meanwhile_stays_and_goes_into_the_next_round(cluster: Cluster) -> None:
    """The merge moves a replica by what the others brought, and no step is counted twice."""
    how = {**QUICK, "strategy": "local-sgd", "min_replicas": 2, "overlap_steps": 2}
    a, b = (Trial(cluster.control_url, "kept", seed, settings=how) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(EVERY), lambda: b.step(EVERY))
        pushed = [trial.parameters() for trial in (a, b)]
        together(lambda: a.step(2), lambda: b.step(2))
        before = [trial.parameters() for trial in (a, b)]
        together(a.replica.finish, b.replica.finish)
        anchor, revision = published(cluster.sync_address, "kept")
        assert revision == 1
        for trial, start, trained in zip((a, b), pushed, before, strict=True):
            for name, value in trial.parameters().items():
                expected = torch.from_numpy(anchor[name]) + (trained[name] - start[name])
                torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
        together(lambda: a.step(2), lambda: b.step(2))
        ends = [trial.parameters() for trial in (a, b)]
        together(a.replica.finish, b.replica.finish)
        merged, revision = published(cluster.sync_address, "kept")
        assert revision == 2
        for name, value in merged.items():
            mean = (ends[0][name] + ends[1][name]) / 2
            torch.testing.assert_close(torch.from_numpy(value), mean, rtol=0, atol=1e-6)


def test_what_is_trained_meanwhile_is_mixed_with_what_is_published(cluster: Cluster) -> None:
    """By its share of each; an uneven one, which says which is whose."""
    mix = 0.25
    how = {**STREAMING, "strategy": "local-sgd", "fragment_groups": 1, "overlap_mix": mix}
    a, b = (Trial(cluster.control_url, "mixed", seed, settings=how) for seed in range(2))
    with joined(a, b):
        # One step short of where it must be merged.
        together(lambda: a.step(EVERY + 1), lambda: b.step(EVERY + 1))
        trained = [trial.parameters() for trial in (a, b)]
        together(a.replica.finish, b.replica.finish)
        anchor, revision = published(cluster.sync_address, "mixed")
        assert revision == 1
        for trial, own in zip((a, b), trained, strict=True):
            for name, value in trial.parameters().items():
                expected = mix * own[name] + (1 - mix) * torch.from_numpy(anchor[name])
                torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("poison", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.long)])
@pytest.mark.parametrize("groups", [1, 10])
def test_what_is_not_finite_heals_though_training_went_on_with_it(
    cluster: Cluster, groups: int, poison: float, is_eager: bool
) -> None:
    how = {**STREAMING, "fragment_groups": groups, "token_budget": 32 * EVERY * STEP_TOKENS}
    if is_eager:
        how |= {"overlap_steps": EVERY, "overlap_eager": True}
    run = f"{poison}-{groups}-{is_eager}".lower()
    a, b = (Trial(cluster.control_url, run, seed, settings=how) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(3), lambda: b.step(3))
        with torch.no_grad():
            a.model.head.weight[0, 0] = poison
        together(lambda: a.step(100 * EVERY), lambda: b.step(100 * EVERY))
        assert a.replica.done and b.replica.done
        assert a.replica.stats.anomalous > 0
        assert b.replica.stats.anomalous == 0
        assert a.replica.stats.barren == 0
        assert all(value.isfinite().all() for value in a.parameters().values())


@pytest.mark.long
def test_a_joiner_falls_into_the_others_rhythm(cluster: Cluster) -> None:
    budget = 16 * EVERY * STEP_TOKENS
    how = {**STREAMING, "min_replicas": 1, "fragment_groups": 10, "token_budget": budget}
    first, second = (Trial(cluster.control_url, "rhythm", s, settings=how) for s in range(2))
    with joined(first):
        first.step(EVERY + 1)
        with joined(second):
            together(lambda: first.step(100 * EVERY), lambda: second.step(100 * EVERY))
            assert first.replica.done and second.replica.done
            assert second.replica.stats.rounds >= 4


@pytest.mark.parametrize("apart", [1, 4, 6])
def test_replicas_that_push_in_different_steps_end_with_what_is_published(
    cluster: Cluster, apart: int
) -> None:
    """The first of them may have pushed a group anew when the last fragment holds the budget."""
    run = f"ends-{apart}"
    how = {**STREAMING, "min_replicas": 1, "fragment_groups": 3, "overlap_steps": 2}
    how["token_budget"] = 10 * EVERY * STEP_TOKENS
    a, b = (Trial(cluster.control_url, run, seed, settings=how) for seed in range(2))
    with joined(a):
        a.step(apart)
        with joined(b):
            together(lambda: a.step(100 * EVERY), lambda: b.step(100 * EVERY))
            assert a.replica.done and b.replica.done
    values, revision = published(cluster.sync_address, run)
    assert a.replica.revision == b.replica.revision == revision
    for trial in (a, b):
        for name, value in trial.parameters().items():
            assert np.array_equal(value.numpy(), values[name]), name
