"""A replica that takes care sees a loss that is not finite where its gradient is, and no other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from syncline import Replica
from syncline_testing.replicas import STEP_TOKENS, TinyModel, batch, loss_of

INFINITE = math.inf


class Losing(TinyModel):
    """Gives its loss as libraries do, with a constant more, which no gradient knows of."""

    def __init__(self, gives: str) -> None:
        super().__init__()
        self._gives = gives

    def forward(self, tokens: Tensor, more: float = 0.0) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = loss_of(super().forward, tokens) + more  # pyright: ignore[reportArgumentType]
        beside = {"loss": loss, "scale": next(iter(self.blocks)).scale}
        gives = {"itself": loss, "tuple": (tokens, loss), "mapping": {"loss": loss}}
        return beside if self._gives == "beside" else gives[self._gives]


class Loop:
    """A plain loop around a model, alone, whose replica takes care."""

    def __init__(self, gives: str = "itself") -> None:
        self.model = self.called = Losing(gives)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.replica = Replica(self.model, self.optimizer, takes_care=True)

    def loss(self, more: float = 0.0) -> Tensor:
        self.replica.count_tokens(STEP_TOKENS)
        made = self.called(batch(0, 0), more)
        return made if isinstance(made, Tensor) else made["loss" if isinstance(made, dict) else 1]

    def update(self) -> bool:
        """Whether it has changed the model."""
        before = self.model.norm.weight.detach().clone()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return not torch.equal(self.model.norm.weight, before)


@pytest.mark.parametrize("gives", ["itself", "tuple", "mapping"])
@pytest.mark.parametrize("more", [INFINITE, math.nan])
def test_a_loss_that_is_not_finite_skips_the_step(gives: str, more: float) -> None:
    loop = Loop(gives)
    with loop.replica as replica, capture_logs() as logs:
        for odd in (False, True, False):
            loop.loss(more if odd else 0.0).backward()
            assert all(p.grad is None or p.grad.isfinite().all() for p in loop.model.parameters())
            assert loop.update() is not odd
        assert replica.inner_step == 2 and replica.tokens == 2 * STEP_TOKENS
    said = [log["loss"] for log in logs if log["event"] == "step skipped: not finite"]
    assert list(map(str, said)) == [str(more)]


def test_a_parameter_that_comes_beside_the_loss_is_none_and_nothing_is_hung_onto_it() -> None:
    loop = Loop("beside")
    with loop.replica, capture_logs() as logs:
        for odd in (False, True, False):
            loop.loss(INFINITE if odd else 0.0).backward()
            assert loop.update() is not odd
        scale: Any = next(iter(loop.model.blocks)).scale
        assert not scale._backward_hooks, "each step would hang one more onto it"
    assert [log["loss"] for log in logs if "loss" in log] == [INFINITE]


def test_one_of_several_batches_of_a_step_is_enough() -> None:
    loop = Loop()
    with loop.replica:
        for more in (INFINITE, 0.0):
            (loop.loss(more) / 2).backward()
        assert not loop.update()
        for more in (0.0, 0.0):
            (loop.loss(more) / 2).backward()
        assert loop.update()


def test_a_loss_that_no_step_comes_of_skips_none() -> None:
    """Of an evaluation, of a batch that the loop has dropped, and what it has judged itself."""
    loop = Loop()
    with loop.replica as replica:
        with torch.no_grad():
            loop.loss(INFINITE)
        loop.loss(INFINITE)
        loop.loss().backward()
        assert loop.update()
        loop.loss(INFINITE).backward()  # as a GradScaler leaves a step out
        loop.optimizer.zero_grad()
        loop.loss().backward()
        assert loop.update()
        (odd := loop.loss(INFINITE)).backward()
        assert replica.skips(odd)
        loop.loss().backward()
        assert loop.update()


def test_a_compiled_model_shows_its_loss_too() -> None:
    """One that was called before there were hooks, and in a replica that trains alone."""
    loop = Loop()
    loop.called = torch.compile(loop.model, backend="eager")  # pyright: ignore[reportAttributeAccessIssue]
    with torch.no_grad():
        loop.called(batch(0, 0))
    loop.loss().backward()
    loop.optimizer.zero_grad()
    with loop.replica:
        loop.loss(INFINITE).backward()
        assert not loop.update()


@pytest.mark.parametrize("whole", [True, False])
def test_what_was_compiled_in_the_block_shows_no_loss_after_it(whole: bool) -> None:
    """It is what the loop evaluates with, and no loss of the next block's first step."""
    loop = Loop()
    model = loop.model if whole else lambda *given: loop.model(*given)
    loop.called = torch.compile(model, backend="eager")  # pyright: ignore[reportAttributeAccessIssue]
    with loop.replica:
        loop.loss(INFINITE).backward()
        assert not loop.update()
    loop.called(batch(0, 0), INFINITE).backward()  # whose gradient, which is finite, stays
    with loop.replica:
        loop.loss().backward()
        assert loop.update()
