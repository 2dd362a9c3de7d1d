"""AGD against its formula, written down once more in numpy and float64."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from syncline.optim import AGD
from syncline_proto.errors import ConfigError

Array = NDArray[np.float64]
SHAPE = (3, 5)


class Reference:
    """Algorithm 1 of arXiv 2312.01658, in the form with the corrections moved out of m and b."""

    def __init__(self, values: Array, options: dict[str, Any]) -> None:
        self.p, self.o = values.copy(), options
        self.m = self.b = self.most = np.zeros_like(values)
        self.t = 0

    def step(self, g: Array) -> None:
        o, (beta1, beta2) = self.o, self.o["betas"]
        self.t += 1
        old = self.m / (1 - beta1 ** (self.t - 1)) if self.t > 1 else np.zeros_like(g)
        self.m = beta1 * self.m + (1 - beta1) * g
        s = self.m / (1 - beta1**self.t) - old
        self.b = beta2 * self.b + (1 - beta2) * s * s
        self.most = np.maximum(self.most, self.b)
        b = self.most if o["amsgrad"] else self.b
        of_b = np.sqrt(1 - beta2**self.t)
        u = of_b / (1 - beta1**self.t) * self.m / np.maximum(np.sqrt(b), o["delta"] * of_b)
        if o["clip"] is not None:
            u = np.clip(u, -o["clip"], o["clip"])
        self.p = self.p * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * u


OPTIONS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.0, 1e-4, 0.1]),
        "betas": st.tuples(st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 0.9, 0.999])),
        "delta": st.sampled_from([1e-14, 1e-5, 0.3]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "clip": st.sampled_from([None, 0.5, 5.0]),
        "amsgrad": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(OPTIONS, st.integers(0, 2**31), st.integers(1, 12))
def test_each_step_is_the_formulas(options: dict[str, Any], seed: int, steps: int) -> None:
    dice = np.random.default_rng(seed)
    start = dice.standard_normal(SHAPE)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer, reference = AGD([parameter], **options), Reference(start, options)
    for _ in range(steps):
        gradient = dice.standard_normal(SHAPE) * 10.0 ** dice.integers(-3, 3)
        gradient[dice.random(SHAPE) < 0.3] = 0.0
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        reference.step(gradient)
        found = parameter.detach().numpy()
        np.testing.assert_allclose(found, reference.p, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_parameter_in_bf16_is_the_formulas_value_rounded_once(decay: float) -> None:
    """The nearest there is: off by half of its last place, or by what fp32 adds where two tie."""
    dice = np.random.default_rng(0)
    o = {"lr": 0.01, "betas": (0.9, 0.99), "delta": 1e-14, "weight_decay": decay}
    start = torch.from_numpy(dice.standard_normal((40, 50))).bfloat16()
    parameter = torch.nn.Parameter(start)
    optimizer = AGD([parameter], **o)
    reference = Reference(start.double().numpy(), o | {"clip": None, "amsgrad": False})
    for _ in range(6):
        parameter.grad = torch.from_numpy(dice.standard_normal(start.shape)).bfloat16()
        reference.step(parameter.grad.double().numpy())
        optimizer.step()
        found = parameter.detach().double().numpy()
        last_place = 2.0 ** (np.floor(np.log2(np.abs(reference.p))) - 7)
        assert (np.abs(found - reference.p) <= 0.5 * last_place + 1e-5).all()
        reference.p = found


class Recorded(TorchFunctionMode):
    """Notes what torch does with tensors where it would keep a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) for one in args):
            self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def test_a_closure_has_its_graph_and_the_step_keeps_none() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = AGD([parameter], lr=0.1, weight_decay=0.1)
    recorded = Recorded()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        recorded.seen.clear()  # what it was called for is no part of the step
        return loss

    with recorded:
        loss = optimizer.step(closure)
    assert loss.item() == 4.0 and not torch.equal(parameter, torch.ones(4))
    assert recorded.seen == []
    kept = [parameter, *optimizer.state[parameter].values()]
    assert all(value.grad_fn is None for value in kept)


def test_zero_gradients_move_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = AGD([parameter], lr=0.1)
    for _ in range(3):
        parameter.grad = torch.zeros(4)
        optimizer.step()
    assert torch.equal(parameter, torch.ones(4))


def test_a_parameter_without_a_gradient_stays_and_has_no_state() -> None:
    one, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = AGD([one, other], lr=0.1, weight_decay=0.5)
    one.grad = torch.ones(2)
    optimizer.step()
    assert other not in optimizer.state
    assert torch.equal(other, torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_that_was_saved_goes_on_as_if_nothing_had_been(dtype: torch.dtype) -> None:
    """In bf16, too, whose state is in fp32 and must not be rounded on its way back."""
    dice = torch.Generator().manual_seed(0)

    def moved(parameter: torch.nn.Parameter, optimizer: AGD, steps: int) -> None:
        for _ in range(steps):
            parameter.grad = torch.randn(SHAPE, generator=dice).to(dtype)
            optimizer.step()

    parameter = torch.nn.Parameter(torch.ones(SHAPE, dtype=dtype))
    optimizer = AGD([parameter], lr=0.01)
    moved(parameter, optimizer, 3)
    again = torch.nn.Parameter(parameter.detach().clone())
    other = AGD([again], lr=0.01)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    assert other.state[again]["exp_avg"].dtype == torch.float32
    state = dice.get_state()
    moved(parameter, optimizer, 3)
    dice.set_state(state)
    moved(again, other, 3)
    assert torch.equal(parameter, again)


@pytest.mark.parametrize(
    "wrong",
    [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"delta": 0.0}, {"weight_decay": -0.1}, {"clip": 0.0}],
    ids=str,
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AGD([torch.nn.Parameter(torch.ones(1))], **wrong)


def test_a_sparse_gradient_is_refused() -> None:
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = AGD(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="sparse=False"):
        optimizer.step()
