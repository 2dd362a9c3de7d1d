"""Steps that are not finite, in a loop of one's own: they change nothing; several go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from syncline.optim import WSAM
from syncline.setbacks import BACK_AFTER, SKIPS_MAX
from syncline_proto.errors import TrainingDiverged
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, batch, joined, loss_of
from syncline_testing.two_ranks import two_ranks

NAN = float("nan")

RANKS = """
from syncline_testing.replicas import STEP_TOKENS, Trial, batch, loss_of

trial = Trial({control!r}, "ranks", 0, settings={settings!r})
with trial.replica as replica:
    for step in range(6):
        replica.count_tokens(STEP_TOKENS)
        loss = loss_of(trial.model, batch(0, step))
        loss.backward()
        if replica.skips(float("nan") if (step, rank) in [(2, 1), (3, 0)] else loss):
            continue
        trial.optimizer.step()
        trial.optimizer.zero_grad()
    replica.finish()
    told = [replica.inner_step, replica.committed_tokens, replica.revision]
    print(told, [float(p.sum()) for p in trial.model.parameters()])
"""


def backward(trial: Trial, times: float = 1.0) -> torch.Tensor:
    """Of one step, as far as its gradient; the loss."""
    trial.replica.count_tokens(STEP_TOKENS)
    loss = times * loss_of(trial.model, batch(trial.seed, trial.replica.inner_step))
    loss.backward()
    return loss


def spoilt(trial: Trial, *, stepping: bool) -> bool:
    """A step whose loss is NaN, which the loop leaves out, or takes all the same; if it was."""
    skips = trial.replica.skips(backward(trial, NAN))
    if stepping:
        trial.optimizer.step()
    return skips


def values_of(trial: Trial) -> list[Any]:
    """All that a step changes."""
    states = [sorted(state.items()) for state in trial.optimizer.state.values()]
    return [[p.tolist() for p in trial.model.parameters()], str(states)]


@pytest.mark.parametrize("stepping", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_step_that_is_not_finite_changes_nothing_and_counts_for_nothing(
    cluster: Cluster, alone: bool, stepping: bool
) -> None:
    """Two lie between two and two more, and the round is of four."""
    control = None if alone else cluster.control_url
    trial = Trial(control, f"spoilt-{stepping:d}", 0, settings=QUICK)
    with joined(trial):
        before = values_of(trial.step(2))
        with capture_logs() as logs:
            assert spoilt(trial, stepping=stepping) and spoilt(trial, stepping=stepping)
        assert values_of(trial) == before
        said = [log for log in logs if log["event"] == "step skipped: not finite"]
        assert len(said) == 2 and str(said[0]["loss"]) == "nan"
        assert trial.replica.inner_step == 2 and trial.replica.tokens == 2 * STEP_TOKENS
        assert not trial.replica.skips(backward(trial)), "the gradient is there still"
        trial.optimizer.step()
        assert values_of(trial.step(1)) != before
        trial.replica.finish()
        assert trial.replica.inner_step == 4 and trial.replica.tokens == 4 * STEP_TOKENS
        assert alone or trial.replica.committed_tokens == 4 * STEP_TOKENS
        assert alone or trial.replica.revision == 1


def test_the_norm_of_the_gradient_counts_given_or_not() -> None:
    trial = Trial(None, "any", 0, settings=QUICK)
    with joined(trial):
        backward(trial)
        assert trial.replica.skips(0.5, float("inf"))
        backward(trial)
        next(trial.model.parameters()).grad[0] = float("inf")  # pyright: ignore[reportOptionalSubscript]
        assert trial.replica.skips(0.5)
        assert all(parameter.grad is None for parameter in trial.model.parameters())


def test_three_in_a_row_take_the_newest_revision_and_five_alone_end(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "sick", 0, settings=QUICK)
    with joined(trial), capture_logs() as logs:
        trial.step(6)
        for parameter in trial.model.parameters():
            parameter.data.fill_(NAN)
        assert [trial.replica.skips(backward(trial)) for _ in range(BACK_AFTER)] == [True] * 3
        assert [log["revision"] for log in logs if log["event"] == "replica.goes_back"] == [1]
        assert not trial.replica.skips(backward(trial)), "it is well again"

    alone = Trial(None, "any", 0, settings=QUICK)
    given_up = pytest.raises(TrainingDiverged, match="5 steps in a row; lower the learning rate")
    with given_up, alone.replica:
        for _ in range(SKIPS_MAX):
            spoilt(alone, stepping=True)


def test_a_gradient_that_is_not_finite_is_no_step_of_the_synchronous_phase(
    cluster: Cluster,
) -> None:
    """After the mean over all replicas is taken there is nothing to skip."""
    settings = {**QUICK, "warmup_steps": 3}
    trial = Trial(cluster.control_url, "warm", 0, settings=settings)
    with joined(trial):
        trial.step(1)
        assert spoilt(trial, stepping=True) and trial.replica.phase == "warm-up"
        backward(trial)
        trial.replica.synchronize()
        assert not trial.replica.skips(NAN)
        trial.optimizer.step()
        trial.optimizer.zero_grad()
        trial.step(1)
        assert trial.replica.inner_step == 3
        assert trial.replica.committed_tokens == 3 * STEP_TOKENS


def test_wsam_goes_back_from_where_its_second_gradient_was_taken() -> None:
    def made(parameters: Any) -> WSAM:
        return WSAM(torch.optim.AdamW(parameters, lr=1e-2), rho=0.5)

    trial = Trial(None, "any", 0, settings=QUICK, optimizer=made)
    assert isinstance(trial.optimizer, WSAM)
    with joined(trial):
        before = values_of(trial)
        backward(trial)
        trial.optimizer.perturb()
        assert values_of(trial) != before
        assert spoilt(trial, stepping=False)
        assert values_of(trial) == before and not trial.optimizer.is_perturbed


def test_a_step_that_one_rank_finds_odd_is_none_on_both(cluster: Cluster, tmp_path: Path) -> None:
    act = RANKS.format(control=cluster.control_url, settings=QUICK)
    first, second = two_ranks(tmp_path, act)
    assert first.count("step skipped: not finite") == 2 and first.count("on another rank") == 1
    assert second.startswith(f"[4, {2 * 4 * STEP_TOKENS}, 1]")
    assert first.splitlines()[-1] == second
