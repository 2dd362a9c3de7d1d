"""The synchronous phase: everybody steps with the mean gradient, and ends with equal parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from syncline.warmup import WarmUp
from syncline_proto.errors import ConfigError
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    batch,
    joined,
    loss_of,
    phases,
    published,
    together,
)
from syncline_testing.waiting import wait_until

STEPS = 5
WARM: dict[str, Any] = {**QUICK, "min_replicas": 2, "warmup_steps": STEPS}


def test_it_equals_one_process_with_the_mean_gradient(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "warm", seed, settings=WARM) for seed in range(2))
    with joined(a, b):
        assert a.replica.phase == b.replica.phase == "warm-up"
        single = TinyModel()
        with torch.no_grad():
            for name, value in a.parameters().items():
                single.get_parameter(name).copy_(value)
        optimizer = torch.optim.AdamW(single.parameters(), lr=1e-2)
        for step in range(STEPS):
            for seed in range(2):
                (loss_of(single, batch(seed, step)) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        together(lambda: a.step(STEPS), lambda: b.step(STEPS))
        together(a.replica.finish, b.replica.finish)
        values, revision = published(cluster.sync_address, "warm")
        assert revision == 1
        for name, value in a.parameters().items():
            assert torch.equal(value, b.parameters()[name])
            assert torch.equal(value, torch.from_numpy(values[name]))
            torch.testing.assert_close(value, single.get_parameter(name), rtol=1e-5, atol=1e-6)
        assert a.replica.phase == "training"
        assert a.replica.committed_tokens == 2 * STEPS * STEP_TOKENS
        together(lambda: a.step(4), lambda: b.step(4))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == 2
        assert a.replica.run_tokens == 2 * (STEPS + 4) * STEP_TOKENS


CLIP = 0.1
"""Well below the norm of a gradient of these models."""


def prepared(trial: Trial, step: int) -> None:
    """The gradients of a step, ready to be looked at."""
    trial.replica.count_tokens(STEP_TOKENS)
    loss_of(trial.model, batch(trial.seed, step)).backward()
    assert trial.replica.synchronize(), "the gradients are the mean now"


def clipped(trial: Trial, step: int) -> float:
    """One step of a loop that clips; the norm from before."""
    prepared(trial, step)
    norm = torch.nn.utils.clip_grad_norm_(trial.model.parameters(), CLIP)
    assert not trial.replica.synchronize(), "a second call must not take the mean again"
    trial.optimizer.step()
    trial.optimizer.zero_grad()
    return norm.item()


def test_a_loop_that_clips_clips_the_mean(cluster: Cluster) -> None:
    # Plain SGD: Adam would hide a scale that is wrong.
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)

    how = {"settings": WARM, "optimizer": sgd}
    a, b = (Trial(cluster.control_url, "clip", seed, **how) for seed in range(2))
    with joined(a, b):
        single = TinyModel()
        single.load_state_dict(a.parameters())
        optimizer = sgd(single.parameters())
        for step in range(STEPS):
            for seed in range(2):
                (loss_of(single, batch(seed, step)) / 2).backward()
            norm = torch.nn.utils.clip_grad_norm_(single.parameters(), CLIP).item()
            assert norm > 2 * CLIP
            optimizer.step()
            optimizer.zero_grad()
            told = together(lambda s=step: clipped(a, s), lambda s=step: clipped(b, s))
            assert told == pytest.approx([norm, norm], rel=1e-5)
        together(a.replica.finish, b.replica.finish)
        assert a.replica.inner_step == STEPS
        for name, value in a.parameters().items():
            assert torch.equal(value, b.parameters()[name])
            torch.testing.assert_close(value, single.get_parameter(name), rtol=1e-5, atol=1e-6)


def test_updates_that_a_loop_leaves_out_end_the_phase_all_the_same(cluster: Cluster) -> None:
    """As a gradient scaler does, which calls no ``step`` when a gradient is not finite."""
    a, b = (Trial(cluster.control_url, "skip", seed, settings=WARM) for seed in range(2))

    def both(act: Callable[[Trial], object]) -> None:
        together(lambda: act(a), lambda: act(b))

    with joined(a, b):
        both(lambda trial: trial.step(1))
        for step in range(1, STEPS):
            both(lambda trial, step=step: prepared(trial, step))
            a.optimizer.zero_grad()
            b.optimizer.zero_grad()
        assert a.replica.phase == "warm-up"
        both(lambda trial: trial.step(1))
        assert a.replica.phase == b.replica.phase == "training"
        assert a.replica.revision == b.replica.revision == 1
        assert a.replica.inner_step == b.replica.inner_step == 2
        assert a.replica.committed_tokens == 2 * STEPS * STEP_TOKENS


def test_a_missed_step_is_none(cluster: Cluster) -> None:
    """Whoever comes late for the last mean drops its gradients, and goes on from revision 1."""
    settings = {
        **QUICK,
        "expected_replicas": 2,
        "warmup_steps": 2,
        "timeouts": {"lease": 1.5, "round_deadline": 2.0},
    }
    a, b = (Trial(cluster.control_url, "missed", s, settings=settings) for s in range(2))
    with joined(a, b):
        together(lambda: a.step(1), lambda: b.step(1))
        a.step(1)
        a.replica.finish()
        assert a.replica.revision == 1
        b.step(1)
        assert (b.replica.inner_step, b.replica.revision) == (1, 1)
        assert all(torch.equal(b.parameters()[n], p) for n, p in a.parameters().items())
        assert b.replica.run_tokens == b.replica.committed_tokens == 3 * STEP_TOKENS
        assert b.replica.phase == "training"
        b.step(1)
        assert b.replica.inner_step == 2


LEFT: dict[str, Any] = {
    **QUICK,
    "warmup_steps": 3,
    "timeouts": {"lease": 1.5, "round_deadline": 2.0},
}


def test_who_is_left_by_a_phase_that_starts_again_takes_part_anew(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "left", seed, settings=LEFT) for seed in range(2))
    with joined(b):
        with joined(a):
            a.step(1)
            b.step(1)  # too late to count: it takes the mean
            assert all(torch.equal(b.parameters()[n], p) for n, p in a.parameters().items())
            a.step(1)  # waits for b until the deadline
        wait_until(lambda: phases(cluster.sync_address, "left") == {1}, 20, "it starts again")
        b.step(1)  # its gradient is of a phase that nobody is in any more
        assert (b.replica.inner_step, b.replica.phase) == (1, "warm-up")
        assert not b.optimizer.state
        b.step(3)
        assert (b.replica.inner_step, b.replica.revision) == (4, 1)
        assert b.replica.committed_tokens == 3 * STEP_TOKENS


def alone(cluster: Cluster, run: str) -> list[Trial]:
    """Two replicas of a run that one can train alone."""
    settings = {**WARM, "min_replicas": 1}
    return [Trial(cluster.control_url, run, seed, settings=settings) for seed in range(2)]


def waits_for_its_end(cluster: Cluster, first: Trial, second: Trial) -> threading.Thread:
    """What joins ``second`` to the phase that ``first`` is in; it has its lease."""
    first.step(2)
    joining = threading.Thread(target=second.replica.start, daemon=True)
    joining.start()
    path = f"/runs/{first.replica.run}/replicas"
    wait_until(lambda: len(cluster.get(path)) == 2, 20, "it has a lease")
    return joining


def test_a_joiner_hears_at_once_that_the_phase_starts_again(cluster: Cluster) -> None:
    """Long before its pull of revision 1 would end by itself."""
    first, second = alone(cluster, "heard")
    with joined(first):
        joining = waits_for_its_end(cluster, first, second)
    joining.join(20)
    assert not joining.is_alive()
    try:
        assert second.replica.phase == "warm-up"
        second.step(STEPS)
        assert (second.replica.revision, second.replica.inner_step) == (1, STEPS)
    finally:
        second.replica.close()


def test_an_offer_of_a_phase_that_started_again_is_no_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (Trial(cluster.control_url, "old", seed, settings=WARM) for seed in range(2))
    offered = WarmUp.offered
    taken: list[int] = []

    def of_another_phase(self: WarmUp, inner_step: int) -> Any:
        assert self is not None
        if threading.current_thread().name == "b":
            self._phases = [1 + phase for phase in self._phases]
            taken.append(inner_step)
        return offered(self, inner_step)

    def by_b() -> None:
        threading.current_thread().name = "b"
        b.step(STEPS)

    monkeypatch.setattr(WarmUp, "offered", of_another_phase)
    with joined(a, b):
        together(lambda: a.step(STEPS), by_b)
        assert taken == [STEPS] and b.replica.phase == "training"
        assert a.replica.revision == b.replica.revision == 1
        assert all(torch.equal(b.parameters()[n], p) for n, p in a.parameters().items())
        together(lambda: a.step(4), lambda: b.step(4))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == b.replica.revision == 2


def test_an_offer_that_comes_to_nothing_amid_a_step_makes_that_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last update of a phase was left out, so that its end comes before the next one."""
    a, b = (Trial(cluster.control_url, "amid", seed, settings=WARM) for seed in range(2))
    offered = WarmUp.offered

    def of_another_phase(self: WarmUp, inner_step: int) -> Any:
        self._phases = [1 + phase for phase in self._phases]
        return offered(self, inner_step)

    with joined(a, b):
        together(lambda: a.step(STEPS - 1), lambda: b.step(STEPS - 1))
        together(lambda: a.step(1), lambda: prepared(b, STEPS - 1))
        b.optimizer.zero_grad()
        monkeypatch.setattr(WarmUp, "offered", of_another_phase)
        b.step(1)
        assert (b.replica.inner_step, b.replica.revision) == (STEPS - 1, 1)
        assert all(torch.equal(b.parameters()[n], p) for n, p in a.parameters().items())
        together(lambda: a.step(4), lambda: b.step(4))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == b.replica.revision == 2


def test_a_joiner_waits_for_its_end(cluster: Cluster) -> None:
    first, second = alone(cluster, "wait")
    with joined(first):
        joining = waits_for_its_end(cluster, first, second)
        first.step(3)
        first.replica.finish()
        joining.join(30)
        try:
            assert second.replica.phase == "training"
            assert second.replica.revision == 1
            values = first.parameters()
            assert all(torch.equal(values[name], p) for name, p in second.parameters().items())
            assert second.replica.committed_tokens == STEPS * STEP_TOKENS
        finally:
            second.replica.close()


def test_a_parameter_without_a_gradient_gets_the_mean_of_the_others(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "sparse", seed, settings=WARM) for seed in range(2))
    with joined(a, b):

        def step(trial: Trial, frozen: bool) -> None:
            loss_of(trial.model, batch(trial.seed, 0)).backward()
            if frozen:
                trial.model.get_parameter("blocks.0.up.bias").grad = None
            trial.optimizer.step()

        together(lambda: step(a, True), lambda: step(b, False))
        values = b.parameters()
        assert all(torch.equal(values[name], p) for name, p in a.parameters().items())
        a.optimizer.zero_grad()
        b.optimizer.zero_grad()
        together(lambda: a.step(STEPS - 1), lambda: b.step(STEPS - 1))


def test_gradients_that_are_scaled_still_or_sparse_are_not_averaged(cluster: Cluster) -> None:
    """As those that a GradScaler leaves to a fused optimizer."""

    def fused(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, fused=True)

    how = {**QUICK, "warmup_steps": 2}
    one = Trial(cluster.control_url, "scaled", 0, settings=how, optimizer=fused)
    scaler = torch.amp.GradScaler("cpu")
    with joined(one):
        scaler.scale(loss_of(one.model, batch(0, 0))).backward()
        with pytest.raises(ConfigError, match=r"scaler\.unscale_\(optimizer\)"):
            scaler.step(one.optimizer)
        scaler.update()
        one.optimizer.grad_scale = None  # which torch leaves where a step has raised
        one.optimizer.zero_grad()
        scaler.scale(loss_of(one.model, batch(0, 0))).backward()
        scaler.unscale_(one.optimizer)
        scaler.step(one.optimizer)
        assert one.replica.inner_step == 1
        weight = one.model.embed.weight
        weight.grad = torch.zeros_like(weight).to_sparse()
        with pytest.raises(ConfigError, match=r"^The gradient of embed\.weight is sparse"):
            one.replica.synchronize()
        weight.grad = None
