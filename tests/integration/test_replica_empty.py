"""A rank that holds nothing of a whole fragment takes part all the same, in whatever way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, published
from syncline_testing.two_ranks import two_ranks

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"overlap_steps": 2},
    "int8": {"codec": {"up": "int8", "down": "int8"}},
    "topk": {"codec": {"up": "topk", "down": "bf16"}},
    "eager": {"overlap_steps": 4, "overlap_eager": True},
}
WIDTHS = {"fp32": 4, "bf16": 2}
"""Bytes of a number on its way down, where that is all that comes."""

# Each block is one number, which the first of two ranks holds.
ACT = """
import json
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from syncline import Replica
from syncline.layout import local_part, whole

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, h):
        return h * self.scale

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(5, 7), nn.Linear(7, 3)
        self.blocks = nn.ModuleList(Scale() for _ in range(2))

    def forward(self, x):
        h = torch.tanh(self.first(x))
        for block in self.blocks:
            h = block(h)
        return self.head(h).square().mean()

def trained(way, settings, control):
    net = Net()
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    how = {"run": way, "name": "pair", "settings": settings, "control": control}
    with Replica(net, optimizer, **how) as replica:
        for step in range(12):
            torch.manual_seed(10 * step + rank)
            replica.count_tokens(1)
            net(torch.randn(4, 5)).backward()
            optimizer.step()
            optimizer.zero_grad()
        replica.finish()
        held = [local_part(block.scale).numel() for block in net.blocks]
        values = {name: whole(p).tolist() for name, p in net.named_parameters()}
        pulled = replica.stats.bytes_down
        return {"held": held, "pulled": pulled, "revision": replica.revision, "values": values}

torch.set_num_threads(1)
print(json.dumps([trained(way, how, CONTROL) for way, how in WAYS.items()]))
"""


def test_who_holds_nothing_of_a_fragment_is_in_its_rounds(cluster: Cluster, tmp_path: Path) -> None:
    ways = {way: {**QUICK, **how} for way, how in WAYS.items()}
    act = f"CONTROL, WAYS = {cluster.control_url!r}, {ways!r}\n{ACT}"
    first, second = (json.loads(said.splitlines()[-1]) for said in two_ranks(tmp_path, act))
    for way, one, other in zip(WAYS, first, second, strict=True):
        assert (one.pop("held"), other.pop("held")) == ([1, 1], [0, 0])
        assert one == other, way
        held, revision = published(cluster.sync_address, way)
        assert revision == one["revision"] >= 2, way
        for name, value in one["values"].items():
            assert np.allclose(held[name], value, rtol=0, atol=1e-6), (way, name)
        if width := WIDTHS.get(ways[way]["codec"]["down"]):
            # Of both ranks together each number once a revision, so nothing for an empty part.
            assert one["pulled"] == (revision + 1) * width * sum(map(np.size, held.values())), way
        assert all(held[f"blocks.{block}.scale"] != 1.0 for block in range(2)), way
