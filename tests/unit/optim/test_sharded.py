"""Two ranks that share a model by FSDP2 take the steps that one process takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline_testing.two_ranks import two_ranks

# Sizes that two ranks cannot share evenly, one of 1 that leaves the second with nothing, and a
# gradient that is the same on both, so that its mean is it.
ACT = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
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

def trained(is_sharded):
    torch.manual_seed(0)
    model = Model()
    if is_sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = {made}
    dice = torch.Generator().manual_seed(1)
    for _ in range(4):
        batch = torch.randn(4, 6, generator=dice)
        model(batch).backward()
        if isinstance(optimizer, WSAM):
            optimizer.perturb()
            model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(parameter) for parameter in model.parameters()]

alone, together = trained(False), trained(True)
print(max(float((a - b).abs().max()) for a, b in zip(alone, together, strict=True)))
"""


@pytest.mark.parametrize(
    ("made", "close"),
    [
        ("AGD(model.parameters(), lr=0.01, weight_decay=0.1)", 1e-6),
        ("WSAM(torch.optim.AdamW(model.parameters(), lr=0.01))", 1e-6),
        ("WSAM(torch.optim.SGD(model.parameters(), lr=0.1), adaptive=True, decouple=False)", 1e-6),
        # Newton-Schulz in bf16, whose sums are in another order.
        ("muon(model, lr=0.01)", 2e-3),
    ],
    ids=["AGD", "WSAM", "WSAM adaptive", "Muon"],
)
def test_sharded_steps_are_those_of_one_process(tmp_path: Path, made: str, close: float) -> None:
    said = two_ranks(tmp_path, ACT.replace("{made}", made))
    assert all(float(off) <= close for off in said), said
