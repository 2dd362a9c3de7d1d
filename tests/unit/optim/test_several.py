"""Muon for matrices and AdamW for the rest, as one optimizer, against float64."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from syncline.optim import WSAM, Several, muon
from syncline_proto.errors import ConfigError

Array = NDArray[np.float64]
LR, DECAY, MOMENTUM, BETAS, EPS = 0.02, 0.1, 0.95, (0.9, 0.95), 1e-8
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tall = nn.Linear(8, 4), nn.Linear(4, 8, bias=False)
        self.norm = nn.LayerNorm(8)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 6, bias=False)


def gradients(model: nn.Module, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=dice).to(parameter.dtype)


class Matrix:
    """Muon of one matrix: Newton-Schulz on the momentum, scaled to AdamW's size."""

    def __init__(self, values: Array) -> None:
        self.p, self.m = values.copy(), np.zeros_like(values)

    def step(self, g: Array) -> None:
        self.m = MOMENTUM * self.m + (1 - MOMENTUM) * g
        x = (1 - MOMENTUM) * g + MOMENTUM * self.m
        flat = x.T if x.shape[0] > x.shape[1] else x
        flat = flat / np.linalg.norm(flat)
        a, b, c = COEFFICIENTS
        for _ in range(5):
            gram = flat @ flat.T
            flat = a * flat + (b * gram + c * gram @ gram) @ flat
        update = flat.T if x.shape[0] > x.shape[1] else flat
        scale = 0.2 * np.sqrt(max(x.shape))
        self.p = self.p * (1 - LR * DECAY) - LR * scale * update


class Vector:
    """AdamW of one tensor."""

    def __init__(self, values: Array) -> None:
        self.p, self.m, self.v = values.copy(), np.zeros_like(values), np.zeros_like(values)
        self.t = 0

    def step(self, g: Array) -> None:
        self.t += 1
        self.m = BETAS[0] * self.m + (1 - BETAS[0]) * g
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * g * g
        decay = DECAY if g.ndim >= 2 else 0.0
        self.p = self.p * (1 - LR * decay)
        root = np.sqrt(self.v / (1 - BETAS[1] ** self.t)) + EPS
        self.p = self.p - LR * self.m / (1 - BETAS[0] ** self.t) / root


@pytest.mark.parametrize(
    ("iterates_in", "close"), [(torch.bfloat16, 0.08), (torch.float64, 1e-12)], ids=str
)
def test_each_step_is_the_formulas(
    monkeypatch: pytest.MonkeyPatch, iterates_in: torch.dtype, close: float
) -> None:
    """PyTorch iterates Newton-Schulz in bf16, which hides all else that is off by as little.

    So once more without that, in float64 throughout.
    """
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.to(iterates_in, copy=True))
    torch.manual_seed(0)
    model = Model().double()
    optimizer = muon(model, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, betas=BETAS, eps=EPS)
    references = {
        name: (Matrix if name.startswith("blocks") and p.ndim == 2 else Vector)(
            p.detach().double().numpy()
        )
        for name, p in model.named_parameters()
    }
    for seed in range(4):
        gradients(model, seed)
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            reference = references[name]
            before = reference.p
            reference.step(parameter.grad.double().numpy())
            found = parameter.detach().numpy().copy()
            off = np.linalg.norm(found - reference.p) / np.linalg.norm(reference.p - before)
            assert off < (close if isinstance(reference, Matrix) else 1e-12), (name, off)
            reference.p = found


def test_one_learning_rate_reaches_both() -> None:
    model = Model()
    optimizer = muon(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients(model, 0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_state_that_was_saved_goes_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(0)
    model, again = Model(), Model()
    optimizer = muon(model)
    for seed in range(2):
        gradients(model, seed)
        optimizer.step()
    again.load_state_dict(model.state_dict())
    other = muon(again, lr=1.0)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    for one, its in ((model, optimizer), (again, other)):
        gradients(one, 7)
        its.step()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert len(other.state) == len(list(again.parameters()))


def test_state_that_is_dropped_is_dropped_in_the_part_that_made_it() -> None:
    """As a replica does after a merge that was not finite."""
    model = Model()
    optimizer = muon(model)
    gradients(model, 0)
    optimizer.step()
    for parameter in model.parameters():
        optimizer.state.pop(parameter)
    assert not any(part.state for part in optimizer.parts)
    optimizer.step()
    assert all(parameter in optimizer.state for parameter in model.parameters())


def test_what_cannot_be_shared_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ConfigError, match="same parameter"):
        Several(torch.optim.SGD([parameter]), torch.optim.AdamW([parameter]))
    with pytest.raises(ConfigError, match="needs optimizers"):
        Several()
    for inner in (WSAM, Several):
        with pytest.raises(ConfigError, match="Put WSAM around Several"):
            Several(inner(torch.optim.SGD([parameter])))
    with pytest.raises(ConfigError, match="before they become one"):
        Several(torch.optim.SGD([parameter])).add_param_group({"params": []})
    with pytest.raises(ConfigError, match="no transformer blocks"):
        muon(nn.Linear(2, 2))
