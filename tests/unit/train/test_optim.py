"""The inner optimizer: bounded gradients, vectors that do not decay, WSAM as the class has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from syncline.optim import WSAM
from syncline.train.folder import Vocabulary
from syncline.train.model import build_model
from syncline.train.optim import build_optimizer, clip_gradients, set_lr
from syncline.train.sections import OptimizerSection
from syncline_testing.training import LLAMA, tiny_job

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
LR, DECAY = 0.1, 0.5
Name = Literal["adamw", "muon", "agd"]


def norm_of(model: nn.Module) -> float:
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
                 .norm())  # fmt: skip


def with_gradients(size: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * size
    return model


def test_a_huge_gradient_is_scaled_to_the_limit_and_keeps_its_direction() -> None:
    model = with_gradients(1e6)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    was = norm_of(model)
    clip_gradients(model, 0.25, was)
    assert norm_of(model) == pytest.approx(0.25, rel=1e-5)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad * (was / 0.25), old, rtol=1e-4, atol=0)


def test_a_rank_without_gradients_has_none_to_scale() -> None:
    model = nn.Linear(4, 8)
    clip_gradients(model, 0.25, 1.0)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("size", "limit"), [(1e-3, 1.0), (float("nan"), 1.0), (1e30, 1.0)])
def test_other_gradients_stay_as_they_are(size: float, limit: float) -> None:
    model = with_gradients(size)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    clip_gradients(model, limit, norm_of(model))
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad.nan_to_num(), old.nan_to_num())


@pytest.mark.parametrize("name", ["adamw", "muon", "agd"])
@pytest.mark.parametrize("config", [LLAMA, GPT2])
def test_matrices_decay_and_vectors_do_not(config: dict[str, Any], name: Name) -> None:
    """With gradients of zero all that moves a parameter is its decay."""
    model = build_model(
        tiny_job(Path("nowhere"), steps=1, model={"config": config}), Vocabulary(257, 256)
    )
    before = {of: parameter.detach().clone() for of, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerSection(name=name, weight_decay=DECAY))
    set_lr(optimizer, LR)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    vectors = {of for of, old in before.items() if old.ndim < 2}
    assert any("norm" in of or "ln" in of for of in vectors)
    for of, parameter in model.named_parameters():
        expected = before[of] if of in vectors else before[of] * (1 - LR * DECAY)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=0, msg=of)


def test_a_job_that_names_wsam_alone_has_what_the_class_has_by_itself() -> None:
    model = nn.Linear(2, 2)
    built = build_optimizer(model, OptimizerSection(name="wsam"))
    plain = WSAM(torch.optim.SGD(model.parameters()))
    assert isinstance(built, WSAM)
    assert (built.rho, built.alpha) == (plain.rho, plain.alpha)
