"""Two ranks that share a model by FSDP2 take the steps that one process takes."""

from __future__ import annotations

from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.two_ranks import two_ranks

# Sizes that two ranks cannot share evenly, one of 1 that leaves the second with nothing, and of
# each batch the rows of its own, so that their gradients differ.
MODEL = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from syncline.layout import whole
from syncline.optim import AGD, WSAM, muon

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(6, 3), nn.Linear(3, 6), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + self.scale * self.b(torch.tanh(self.a(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

def built(is_sharded, make):
    torch.manual_seed(0)
    model = Model()
    if is_sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model, make(model)

def train(model, optimizer, steps, seed=1):
    dice = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randn(4, 6, generator=dice)
        if isinstance(next(model.parameters()), DTensor):
            batch = batch[rank::2]
        model(batch).backward()
        if isinstance(optimizer, WSAM):
            optimizer.perturb()
            model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(parameter) for parameter in model.parameters()]
"""

ACT = """
def trained(is_sharded, steps=4):
    model, optimizer = built(is_sharded, lambda model: {made})
    return train(model, optimizer, steps)

start, alone, together = trained(False, steps=0), trained(False), trained(True)
print(max(float((a - b).norm() / (a - s).norm()) for s, a, b in zip(start, alone, together)))
"""


@pytest.mark.parametrize(
    ("made", "close"),
    [
        ("AGD(model.parameters(), lr=0.01, weight_decay=0.1)", 1e-5),
        ("WSAM(torch.optim.AdamW(model.parameters(), lr=0.01))", 1e-5),
        ("WSAM(torch.optim.SGD(model.parameters(), lr=0.1), adaptive=True, decouple=False)", 1e-5),
        # Newton-Schulz in bf16, whose sums are in another order: 0.02. Where each rank makes its
        # own rows orthogonal, it is 0.5.
        ("muon(model, lr=0.01)", 0.08),
    ],
    ids=["AGD", "WSAM", "WSAM adaptive", "Muon"],
)
def test_sharded_steps_are_those_of_one_process(tmp_path: Path, made: str, close: float) -> None:
    """How far they are off, as a share of how far a tensor has come."""
    said = two_ranks(tmp_path, MODEL + ACT.replace("{made}", made))
    assert all(float(off) <= close for off in said), said


KEPT = """
from copy import deepcopy
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

def goes_on(make):
    model, optimizer = built(True, make)
    train(model, optimizer, 2)
    values, state = deepcopy(get_state_dict(model, optimizer))
    again, other = built(True, make)
    set_state_dict(again, other, model_state_dict=values, optim_state_dict=state)
    ended = train(model, optimizer, 2, seed=2), train(again, other, 2, seed=2)
    before = [value.full_tensor() for value in values.values()]
    assert not any(torch.equal(a, b) for a, b in zip(ended[0], before))
    return all(torch.equal(a, b) for a, b in zip(*ended))

print([
    goes_on(make) for make in (
        lambda model: AGD(model.parameters(), lr=0.01),
        lambda model: WSAM(torch.optim.AdamW(model.parameters(), lr=0.01)),
        lambda model: muon(model, lr=0.01),
    )
])
"""


def test_the_state_goes_on_bit_for_bit_by_torchs_distributed_checkpoint(tmp_path: Path) -> None:
    """Its functions step a new optimizer once, with gradients and a learning rate of 0."""
    assert two_ranks(tmp_path, MODEL + KEPT) == ["[True, True, True]"] * 2


# Nothing here is shared: the ranks have a process group, as those of other replicas or of a tool
# have, and gradients of their own, which point elsewhere.
OWN = """
import torch
from syncline.optim import WSAM

def trained(rank, decouple):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    base = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = WSAM(base, rho=0.5, decouple=decouple)
    seen = []
    for _ in range(3):
        batch = torch.randn(4, 4)
        model(batch).square().mean().backward()
        optimizer.perturb()
        seen += [parameter.tolist() for parameter in model.parameters()]
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += [parameter.tolist() for parameter in model.parameters()]
    return seen
"""


def test_who_shares_nothing_steps_as_if_alone(tmp_path: Path) -> None:
    """Of neither pass is anything summed over the default process group: bit for bit."""
    alone: dict[str, Any] = {}
    exec(OWN, alone)
    act = f"{OWN}\ntorch.set_num_threads(1)\nprint([trained(rank, how) for how in (True, False)])"
    assert [literal_eval(said) for said in two_ranks(tmp_path, act)] == [
        [alone["trained"](rank, how) for how in (True, False)] for rank in range(2)
    ]
