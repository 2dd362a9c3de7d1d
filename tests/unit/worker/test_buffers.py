"""What is saved with a model and never exchanged stays as it was, or no rank goes on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from syncline.buffers import Buffers
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError
from syncline_testing.replicas import TinyModel
from syncline_testing.two_ranks import two_ranks

ACT = """
import torch
from syncline.buffers import Buffers
from syncline_proto.errors import ConfigError

model = torch.nn.Linear(2, 2)
{before}
buffers = Buffers(model, ranks)
buffers.check_unchanged()
if rank == 1:
    {change}
try:
    buffers.check_unchanged()
except ConfigError as error:
    print(error.message)
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_a_changed_buffer_is_told_by_its_canonical_name(dtype: torch.dtype) -> None:
    model = TinyModel()
    model.blocks[1].register_buffer("bias", torch.zeros((), dtype=dtype))
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    buffers = Buffers(model, Ranks())
    buffers.check_unchanged()
    list(model.buffers())[0].fill_(math.nan)
    nan = Buffers(model, Ranks())
    nan.check_unchanged()
    with pytest.raises(ConfigError, match=r"^The buffer blocks\.1\.bias has changed"):
        buffers.check_unchanged()


def test_the_same_bytes_of_another_type_or_shape_are_a_change() -> None:
    model = TinyModel()
    model.register_buffer("bias", torch.zeros(4, dtype=torch.bfloat16))
    buffers = Buffers(model, Ranks())
    for other in (torch.zeros(4, dtype=torch.float16), torch.zeros(2, 2, dtype=torch.bfloat16)):
        model.register_buffer("bias", other)
        with pytest.raises(ConfigError, match="buffer bias has changed"):
            buffers.check_unchanged()


def test_a_buffer_that_comes_or_goes_is_told() -> None:
    model = TinyModel()
    none = Buffers(model, Ranks())
    none.check_unchanged()
    model.register_buffer("bias", torch.zeros(3))
    with pytest.raises(ConfigError, match=r"^The buffer bias came or went"):
        none.check_unchanged()
    one = Buffers(model, Ranks())
    model.register_buffer("bias", torch.zeros(3), persistent=False)
    with pytest.raises(ConfigError, match=r"^The buffer bias came or went"):
        one.check_unchanged()
    none.check_unchanged()


def test_a_parameter_that_is_trained_only_since_the_join_is_told_by_its_canonical_name() -> None:
    model = TinyModel()
    model.blocks[1].requires_grad_(False)
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    seen = Buffers(model, Ranks())
    model.blocks[0].requires_grad_(False)  # it stays as it is, and is pushed so
    seen.check_unchanged()
    next(model.blocks[1].parameters()).requires_grad_(True)
    with pytest.raises(ConfigError, match=r"^The parameter blocks\.1\..+ requires a gradient"):
        seen.check_unchanged()
    late = Buffers(TinyModel(), Ranks())
    late.check_unchanged()


@pytest.mark.parametrize(
    ("before", "change", "told"),
    [
        (
            "model.bias.requires_grad_(False)",
            "model.bias.requires_grad_(True)",
            ["A parameter of another rank requires", "The parameter bias requires"],
        ),
        (
            "model.register_buffer('bias_of', torch.zeros(3))",
            "model.bias_of += 1",
            ["The buffer bias_of has changed"] * 2,
        ),
        (
            "",
            "model.register_buffer('late', torch.zeros(3))",
            ["A buffer of another rank came or went", "The buffer late came or went"],
        ),
    ],
    ids=["thawed", "changed", "late"],
)
def test_what_one_rank_sees_stops_all(
    tmp_path: Path, before: str, change: str, told: list[str]
) -> None:
    said = two_ranks(tmp_path, ACT.format(before=before, change=change))
    assert [line.startswith(start) for line, start in zip(said, told, strict=True)] == [True] * 2
