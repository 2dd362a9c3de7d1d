"""WSAM against its formula in numpy and float64, on a loss whose gradient is known everywhere."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from syncline.optim import WSAM, Several
from syncline_proto.errors import ConfigError

Array = NDArray[np.float64]
N, LR, DECAY = 7, 0.05, 0.1


def gradient_at(p: Array, curve: Array) -> Array:
    """Of sum(curve p^4 / 4 + sin p)."""
    return curve * p**3 + np.cos(p)


def loss_at(parts: list[torch.nn.Parameter], curve: torch.Tensor) -> torch.Tensor:
    p = torch.cat(list[torch.Tensor](parts))
    return (curve * p**4 / 4 + torch.sin(p)).sum()


class Sgd:
    """With coupled weight decay."""

    def step(self, p: Array, g: Array) -> Array:
        return p - LR * (g + DECAY * p)


class AdamW:
    """Its moments are of what the step goes by, and its weight decay is no part of that."""

    def __init__(self) -> None:
        self._m, self._v, self._t = np.zeros(N), np.zeros(N), 0

    def step(self, p: Array, g: Array) -> Array:
        self._t += 1
        self._m = 0.9 * self._m + 0.1 * g
        self._v = 0.999 * self._v + 0.001 * g**2
        mean, square = self._m / (1 - 0.9**self._t), self._v / (1 - 0.999**self._t)
        return p * (1 - LR * DECAY) - LR * mean / (np.sqrt(square) + 1e-8)


BASES: dict[str, tuple[Any, Any]] = {
    "sgd": (torch.optim.SGD, Sgd),
    "adamw": (torch.optim.AdamW, AdamW),
}


def reference_step(p: Array, curve: Array, o: dict[str, Any], base: Sgd | AdamW) -> Array:
    """One step of algorithm 2 of arXiv 2305.15817."""
    a = o["gamma"] / (1 - o["gamma"])
    g = gradient_at(p, curve)
    size = np.abs(p) if o["adaptive"] else np.ones_like(p)
    e = o["rho"] * size**2 * g / (np.linalg.norm(size * g) + 1e-12)
    g2 = gradient_at(p + e, curve)
    used = g if o["decouple"] else (1 - a) * g + a * g2
    moved = base.step(p, used)
    return moved - LR * a * (g2 - g) if o["decouple"] else moved


OPTIONS = st.fixed_dictionaries(
    {
        "rho": st.sampled_from([0.0, 0.05, 0.5]),
        "gamma": st.sampled_from([0.0, 0.5, 0.9]),
        "adaptive": st.booleans(),
        "decouple": st.booleans(),
    }
)


def wsam(
    values: Array, options: dict[str, Any], base: Any = torch.optim.SGD
) -> tuple[list[torch.nn.Parameter], WSAM]:
    """Over two parameters, so that the norm is of both."""
    parts = [torch.nn.Parameter(torch.from_numpy(v.copy())) for v in np.split(values, [3])]
    return parts, WSAM(base(parts, lr=LR, weight_decay=DECAY), **options)


def values_of(parts: list[torch.nn.Parameter]) -> Array:
    return torch.cat(list[torch.Tensor](parts)).detach().numpy()


@pytest.mark.parametrize("base", BASES)
@settings(max_examples=100, deadline=None)
@given(options=OPTIONS, seed=st.integers(0, 2**31))
def test_each_step_is_the_formulas(base: str, options: dict[str, Any], seed: int) -> None:
    dice = np.random.default_rng(seed)
    expected, curve = dice.standard_normal(N), dice.standard_normal(N)
    theirs, reference = BASES[base][0], BASES[base][1]()
    parts, optimizer = wsam(expected, options, theirs)
    for _ in range(4):
        loss_at(parts, torch.from_numpy(curve)).backward()
        optimizer.perturb()
        loss_at(parts, torch.from_numpy(curve)).backward()
        optimizer.step()
        optimizer.zero_grad()
        expected = reference_step(expected, curve, options, reference)
        np.testing.assert_allclose(values_of(parts), expected, rtol=1e-9, atol=1e-12)


def test_the_way_back_is_exact_even_from_a_gradient_that_is_not_finite() -> None:
    start = np.linspace(-1, 1, N)
    parts, optimizer = wsam(start, {"gamma": 0.0, "rho": 0.3})
    for part in parts:
        part.grad = torch.full_like(part, float("nan"))
    optimizer.perturb()
    assert np.isnan(values_of(parts)).all()
    for part in parts:
        part.grad = torch.zeros_like(part)
    optimizer.base.param_groups[0]["lr"] = 0.0
    optimizer._before = {p: (v, torch.zeros_like(g)) for p, (v, g) in optimizer._before.items()}  # pyright: ignore[reportOptionalMemberAccess]
    optimizer.step()
    assert values_of(parts).tobytes() == start.tobytes()


def test_with_batch_norm_each_step_is_the_formulas_and_statistics_are_of_the_first_pass() -> None:
    """Where its momentum is 0 for the second, which sees the model elsewhere, as WSAM says."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), norm, torch.nn.Linear(4, 1)).double()
    optimizer = WSAM(torch.optim.SGD(model.parameters(), lr=LR), rho=0.5, gamma=0.9)
    values = [parameter.detach().clone() for parameter in model.parameters()]
    mean, square = torch.zeros(4).double(), torch.ones(4).double()

    def gradients_at(at: list[torch.Tensor], batch: torch.Tensor) -> list[torch.Tensor]:
        w, b, scale, shift, u, c = (value.requires_grad_() for value in at)
        h = batch @ w.T + b
        z = (h - h.mean(0)) / (h.var(0, correction=0) + norm.eps).sqrt() * scale + shift
        loss = (z @ u.T + c).square().mean()
        return list(torch.autograd.grad(loss, [w, b, scale, shift, u, c]))

    for _ in range(3):
        batch = torch.randn(8, 3).double()
        hidden = batch @ values[0].T + values[1]
        mean = 0.9 * mean + 0.1 * hidden.mean(0)
        square = 0.9 * square + 0.1 * hidden.var(0)
        first = gradients_at([value.clone() for value in values], batch)
        length = torch.cat([one.flatten() for one in first]).norm()
        near = [v + 0.5 * g / length for v, g in zip(values, first, strict=True)]
        second = gradients_at(near, batch)
        values = [
            v - LR * (g + 9 * (other - g))
            for v, g, other in zip(values, first, second, strict=True)
        ]
        model(batch).square().mean().backward()
        optimizer.perturb()
        norm.momentum = 0.0
        model(batch).square().mean().backward()
        norm.momentum = 0.1
        optimizer.step()
        optimizer.zero_grad()
        assert norm.running_mean is not None and norm.running_var is not None
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, square)
        torch.testing.assert_close(list(model.parameters()), values, rtol=1e-9, atol=1e-12)


def test_a_gradient_of_one_pass_alone_is_zero_in_the_other() -> None:
    start = np.ones(N)
    parts, optimizer = wsam(start, {"rho": 0.0, "gamma": 0.5})
    parts[0].grad = torch.ones_like(parts[0])
    optimizer.perturb()
    parts[1].grad = torch.ones_like(parts[1])
    optimizer.step()
    # a is 1: the first moves by g - g, the second by nothing and then by g'.
    decayed = start - LR * DECAY * start
    expected = np.concatenate([decayed[:3], decayed[3:] - LR])
    np.testing.assert_allclose(values_of(parts), expected, rtol=1e-12)


def stepped(parameter: torch.nn.Parameter, optimizer: WSAM, steps: int) -> None:
    for step in range(steps):
        parameter.grad = torch.ones(3) + step
        optimizer.perturb()
        parameter.grad = torch.tensor([2.0, -1.0, 0.5])
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("way", ["torch", "distributed"])
def test_its_state_is_the_base_optimizers_and_goes_on_elsewhere(way: str) -> None:
    model, again = torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(3, 1, bias=False)
    parameter, its = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    model.weight, again.weight = parameter, its
    optimizer = WSAM(torch.optim.AdamW([parameter], lr=0.1))
    other = WSAM(torch.optim.AdamW([its], lr=0.3))
    stepped(parameter, optimizer, 2)
    with torch.no_grad():
        its.copy_(parameter)
    if way == "torch":
        other.load_state_dict(deepcopy(optimizer.state_dict()))
    else:
        saved = deepcopy(get_optimizer_state_dict(model, optimizer))
        set_optimizer_state_dict(again, other, saved)
    assert other.param_groups is other.base.param_groups and other.state is other.base.state
    assert other.param_groups[0]["lr"] == 0.1
    kept, held = optimizer.base.state[parameter], other.base.state[its]
    assert held.keys() == kept.keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert all(torch.equal(held[name], kept[name]) for name in kept)
    stepped(parameter, optimizer, 1)
    stepped(its, other, 1)
    assert torch.equal(parameter, its)


def test_where_it_may_learn_nothing_one_gradient_is_enough() -> None:
    """Also of several groups, of which each may learn."""
    one, two = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = WSAM(torch.optim.AdamW([{"params": [one], "lr": 0.0}, {"params": [two]}], lr=0.1))
    one.grad = torch.ones(2)
    with pytest.raises(ConfigError, match="call perturb"):
        optimizer.step()
    optimizer.param_groups[1]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(one, torch.ones(2))


def test_what_must_be_written_is_written_before_it_moves() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = WSAM(torch.optim.SGD([parameter], lr=0.0), rho=1.0)
    seen: list[float] = []
    optimizer.register_perturb_pre_hook(lambda: seen.append(float(parameter.sum())))
    parameter.grad = torch.ones(2)
    optimizer.perturb()
    assert seen == [2.0]
    assert optimizer.is_perturbed


def test_steps_out_of_order_are_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = WSAM(torch.optim.SGD([parameter], lr=0.1))
    with pytest.raises(ConfigError, match="call perturb"):
        optimizer.step()
    parameter.grad = torch.ones(2)
    optimizer.perturb()
    with pytest.raises(ConfigError, match="perturbed already"):
        optimizer.perturb()
    with pytest.raises(ConfigError, match="no closure"):
        optimizer.step(lambda: 0.0)


def test_parameters_that_come_later_are_the_base_optimizers_to_take_or_refuse() -> None:
    one, two, three = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    base = torch.optim.SGD([one], lr=0.1)
    optimizer = WSAM(base)
    optimizer.add_param_group({"params": [two], "lr": 1.0})
    assert [group["lr"] for group in base.param_groups] == [0.1, 1.0]
    assert optimizer.param_groups is base.param_groups
    with pytest.raises(ConfigError, match="before they become one"):
        WSAM(Several(base)).add_param_group({"params": [three]})


@pytest.mark.parametrize("wrong", [{"rho": -0.1}, {"gamma": 1.0}, {"gamma": -0.1}], ids=str)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    base = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        WSAM(base, **wrong)


def test_a_sparse_gradient_is_refused_before_anything_has_moved() -> None:
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = WSAM(torch.optim.SGD(embedding.parameters(), lr=LR))
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="sparse=False"):
        optimizer.perturb()
    assert torch.equal(embedding.weight, before)
