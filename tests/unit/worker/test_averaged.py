"""Ranks that hold the same parameters train one model, by whatever averages their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.ranks import check_together
from syncline_proto.errors import ConfigError
from syncline_testing.two_ranks import two_ranks

ACT = """
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from syncline.averaged import Averaged
from syncline_proto.errors import ConfigError

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
used = given = model
{wrap}
averaged = Averaged(given, ranks)
averaged.see(0)
used(torch.full((1, 2), float(rank + 1))).sum().backward()
{after}
try:
    averaged.see(0)
except ConfigError as error:
    print(error.message)
"""

TENSOR = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

plan = {{"1": ColwiseParallel(), "2": RowwiseParallel()}}
given = torch.nn.Sequential(torch.nn.Linear(2, 2), *model)
parallelize_module(given, init_device_mesh("cpu", (2,)), plan)
used = lambda x: given({batch})
"""

BY_HAND = "[dist.all_reduce(p.grad) for p in model.parameters()]"


@pytest.mark.parametrize(
    ("wrap", "after", "apart"),
    [
        ("", "", "0.weight"),
        ("", BY_HAND, None),
        ("used = given = DistributedDataParallel(model)", "", None),
        ("used = DistributedDataParallel(model)", "", None),
        ("fully_shard(model)", "", None),
        ("fully_shard(model[0])", "", "1.weight"),
        (TENSOR.format(batch="torch.ones_like(x)"), "", None),
        (TENSOR.format(batch="x"), "", "0.weight"),
    ],
    ids=[
        *("plain", "by hand", "DDP", "in DDP", "sharded", "half sharded"),
        *("tensor parallel", "tensor parallel with two batches"),
    ],
)
def test_ranks_are_refused_where_nothing_averages(
    tmp_path: Path, wrap: str, after: str, apart: str | None
) -> None:
    said = two_ranks(tmp_path, ACT.format(wrap=wrap, after=after))
    if apart is None:
        assert said == ["", ""]
    else:
        assert all(f"different gradients of {apart}, so each trains" in one for one in said)


def test_ranks_that_have_not_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for alone in ("", "1"):
        monkeypatch.setenv("WORLD_SIZE", alone)
        check_together()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="^WORLD_SIZE is 2, and torch.distributed is not"):
        check_together()
