"""Anchors: what the model holds of a published value, whatever its parameters' precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from syncline.anchors import Anchors
from syncline.layout import describe
from syncline.ranks import Ranks
from syncline_proto.codec import CODEC_BY_NAME, Float32
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb

HEADER = pb.PullHeader(revision=3, codec=pb.CODEC_FP32)


def anchors(dtype: torch.dtype) -> Anchors:
    return Anchors(describe(nn.Linear(7, 5).to(dtype), Ranks()).shards)


def values(numel: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).normal(size=numel).astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_what_rounding_loses_is_no_progress(dtype: torch.dtype, codec: CodecName) -> None:
    held = anchors(dtype)
    header = pb.PullHeader(revision=3, codec=CODEC_BY_NAME[codec])
    published = torch.from_numpy(values(held.shards[0].numel))
    if codec == "bf16":
        published = published.bfloat16().float()
    held.adopt(0, published.numpy().copy(), header)
    assert not held.pseudo_gradient(0).any()
    assert held.parameters(0).tolist() == published.to(dtype).float().tolist()
    assert held.revisions[0] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_progress_a_rebase_is_an_adoption(dtype: torch.dtype) -> None:
    held, other = anchors(dtype), anchors(dtype)
    held.adopt(0, values(held.shards[0].numel, 1), HEADER)
    held.rebase(0, values(held.shards[0].numel, 2), HEADER)
    other.adopt(0, values(held.shards[0].numel, 2), HEADER)
    assert held.parameters(0).tolist() == other.parameters(0).tolist()
    assert not held.pseudo_gradient(0).any()
