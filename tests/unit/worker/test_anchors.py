"""Anchors: what the model holds of a published value, whatever its parameters' precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from syncline.anchors import Anchors
from syncline.carrier import Direct
from syncline.change import Change
from syncline.layout import outline
from syncline.payload import Encoded
from syncline.ranks import Ranks
from syncline.scratch import Scratch
from syncline_proto.codec import CODEC_BY_NAME, Float32, UInt16, advance
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb

HEADER = pb.PullHeader(revision=3, codec=pb.CODEC_FP32)


def anchors(dtype: torch.dtype, *, beside: bool = False, keeps_copies: bool = False) -> Anchors:
    """``beside``: as on a device that is not the CPU."""
    shards = outline(nn.Linear(7, 5).to(dtype), Ranks()).cut().shards
    carrier = Direct(Scratch(), torch.device("cpu") if beside else None)
    return Anchors(shards, carrier, keeps_copies=keeps_copies)


def values(numel: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).normal(size=numel).astype(np.float32)


def fp32(payload: Encoded) -> Float32:
    return payload.here().view(np.float32)


def bits(published: Tensor) -> UInt16:
    """As bf16, in memory of its own."""
    return published.to(torch.bfloat16, copy=True).view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_what_rounding_loses_is_no_progress(
    dtype: torch.dtype, codec: CodecName, beside: bool
) -> None:
    held = anchors(dtype, beside=beside)
    header = pb.PullHeader(revision=3, codec=CODEC_BY_NAME[codec])
    published = torch.from_numpy(values(held.shards[0].numel))
    if codec == "bf16":
        published = published.bfloat16().float()
    held.adopt(0, bits(published) if codec == "bf16" else published.numpy().copy(), header)
    assert not fp32(held.pseudo_gradient(0)).any()
    assert fp32(held.parameters(0)).tolist() == published.to(dtype).float().tolist()
    assert held.revisions[0] == 3


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("bits", [bits, lambda published: published.numpy().copy()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_progress_a_rebase_is_an_adoption(
    dtype: torch.dtype, bits: Callable[[Tensor], Float32 | UInt16], beside: bool
) -> None:
    held, other = anchors(dtype, beside=beside), anchors(dtype)
    held.adopt(0, values(held.shards[0].numel, 1), HEADER)
    second = torch.from_numpy(values(held.shards[0].numel, 2))
    held.rebase(0, bits(second), HEADER)
    other.adopt(0, bits(second), HEADER)
    assert fp32(held.parameters(0)).tolist() == fp32(other.parameters(0)).tolist()
    assert not fp32(held.pseudo_gradient(0)).any()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("codec", [pb.CODEC_BF16, pb.CODEC_INT8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_published_value_in_bf16_is_held_bit_for_bit(
    dtype: torch.dtype, codec: pb.Codec.ValueType, beside: bool
) -> None:
    """On the CPU, or as a copy of what lies on a device."""
    anchor = anchors(dtype, beside=beside, keeps_copies=beside)
    assert anchor.held(0) is None, "nothing was published yet"
    published = torch.from_numpy(values(anchor.shards[0].numel)).bfloat16()
    anchor.adopt(0, bits(published), pb.PullHeader(codec=codec, value="here/1/3"))
    held = anchor.held(0)
    assert held is not None and held.name == "here/1/3"
    assert held.bits.tobytes() == published.view(torch.int16).numpy().tobytes()
    anchor.rebase(0, bits(2 * published), pb.PullHeader(codec=codec, value="here/1/4"))
    again = anchor.held(0)
    assert again is not None and again.name == "here/1/4"
    assert again.bits.tobytes() == (2 * published).view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize(
    ("dtype", "codec", "name"),
    [
        (torch.float16, pb.CODEC_BF16, "a"),  # rounded to what the parameters hold
        (torch.float32, pb.CODEC_FP32, "a"),
        (torch.float32, pb.CODEC_BF16, ""),
    ],
)
def test_what_no_difference_can_be_added_to_is_not_held(
    dtype: torch.dtype, codec: pb.Codec.ValueType, name: str
) -> None:
    anchor = anchors(dtype)
    published = torch.from_numpy(values(anchor.shards[0].numel))
    as_told = published.numpy() if codec == pb.CODEC_FP32 else bits(published)
    anchor.adopt(0, as_told, pb.PullHeader(codec=codec, value=name))
    assert anchor.held(0) is None


def test_a_copy_is_held_from_the_first_anchor_on_for_which_it_is_kept() -> None:
    """A run's ``codec.down`` may change while it goes on."""
    anchor = anchors(torch.float32, beside=True)
    published = torch.from_numpy(values(anchor.shards[0].numel)).bfloat16()
    for kept in (False, True, False):
        anchor.keeps_copies = kept
        anchor.adopt(0, bits(published), pb.PullHeader(codec=pb.CODEC_BF16, value="a"))
        held = anchor.held(0)
        assert (held is not None) == kept
        assert held is None or held.bits.tobytes() == bits(published).tobytes()
        assert anchor.value(0).tolist() == published.float().tolist()


def changed(anchor: Anchors, seed: int) -> tuple[Change, UInt16]:
    """What takes fragment 0's anchor on, and to what."""
    held = anchor.held(0)
    assert held is not None and held.tensors == len(anchor.shards[0].pieces)
    after = held.bits.copy()
    told = advance(after, torch.from_numpy(values(after.size, seed)).numpy())
    assert told is not None
    return Change(held.bits, np.array([[0, after.size]], np.int64), [told]), after


def test_a_change_lands_as_the_value_that_it_leads_to() -> None:
    anchor, other = anchors(torch.float32), anchors(torch.float32)
    first = torch.from_numpy(values(anchor.shards[0].numel))
    for one in (anchor, other):
        one.adopt(0, bits(first), pb.PullHeader(codec=pb.CODEC_BF16, value="a/1/3"))
    versions = [piece.parameter._version for piece in anchor.shards[0].pieces]
    for seed in (1, 2):
        change, after = changed(anchor, seed)
        header = pb.PullHeader(codec=pb.CODEC_INT8, value=f"a/1/{seed}", revision=seed)
        anchor.adopt(0, change, header)
        other.adopt(0, after.copy(), header)
        held = anchor.held(0)
        assert held is not None and held.name == f"a/1/{seed}" and anchor.revisions[0] == seed
        assert np.array_equal(held.bits, after)
        assert fp32(anchor.parameters(0)).tolist() == fp32(other.parameters(0)).tolist()
        assert not fp32(anchor.pseudo_gradient(0)).any()
    now = [piece.parameter._version for piece in anchor.shards[0].pieces]
    assert all(map(int.__lt__, versions, now)), "autograd is to see that they were written"
    change, after = changed(anchor, 3)
    anchor.rebase(0, change, pb.PullHeader(codec=pb.CODEC_INT8, value="a/1/4"))
    held = anchor.held(0)
    assert held is not None and np.array_equal(held.bits, after)


def test_a_change_that_is_broken_off_lands_whole_the_next_time() -> None:
    """By a signal, say; meanwhile the anchor is no value that has a name."""
    anchor = anchors(torch.float32)
    published = torch.from_numpy(values(anchor.shards[0].numel))
    anchor.adopt(0, bits(published), pb.PullHeader(codec=pb.CODEC_BF16, value="a/1/3"))
    change, after = changed(anchor, 1)
    told = change.chunks

    class Breaks(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from told
            raise KeyboardInterrupt

    change.chunks = Breaks()
    header = pb.PullHeader(codec=pb.CODEC_INT8, value="a/1/4", revision=4)
    with pytest.raises(KeyboardInterrupt):
        anchor.adopt(0, change, header)
    assert anchor.held(0) is None and anchor.revisions[0] == 0
    change.chunks = told
    anchor.adopt(0, change, header)
    held = anchor.held(0)
    assert held is not None and np.array_equal(held.bits, after)
    assert not fp32(anchor.pseudo_gradient(0)).any()


def test_a_change_lands_in_parameters_that_lie_otherwise_by_then() -> None:
    """A loop may lay them out anew between push and merge: ``channels_last``, say."""
    anchor = anchors(torch.float32)
    published = torch.from_numpy(values(anchor.shards[0].numel))
    anchor.adopt(0, bits(published), pb.PullHeader(codec=pb.CODEC_BF16, value="a/1/3"))
    change, after = changed(anchor, 1)
    for piece in anchor.shards[0].pieces:
        piece.parameter.data = piece.parameter.data.t().contiguous().t()
    anchor.adopt(0, change, pb.PullHeader(codec=pb.CODEC_INT8, value="a/1/4"))
    held = anchor.held(0)
    assert held is not None and np.array_equal(held.bits, after) and held.tensors is None
    assert not fp32(anchor.pseudo_gradient(0)).any()


@pytest.mark.parametrize("way", ["adopt", "rebase"])
def test_a_change_to_another_value_than_the_anchor_is_refused(way: str) -> None:
    anchor = anchors(torch.float32)
    published = torch.from_numpy(values(anchor.shards[0].numel))
    header = pb.PullHeader(codec=pb.CODEC_BF16, value="a/1/3")
    anchor.adopt(0, bits(published), header)
    change, _ = changed(anchor, 1)
    anchor.adopt(0, bits(published), header)
    with pytest.raises(AssertionError, match="of another anchor"):
        getattr(anchor, way)(0, change, pb.PullHeader(codec=pb.CODEC_INT8, value="a/1/4"))
    assert anchor.held(0) is not None
    assert not fp32(anchor.pseudo_gradient(0)).any()


@pytest.mark.parametrize(
    ("dtype", "beside", "trains_on"),
    [(torch.float64, False, False), (torch.float32, True, False), (torch.float32, False, True)],
)
def test_an_anchor_stays_as_it_is_where_a_change_could_not_land_in_it(
    dtype: torch.dtype, beside: bool, trains_on: bool
) -> None:
    anchor = anchors(dtype, beside=beside, keeps_copies=beside)
    published = torch.from_numpy(values(anchor.shards[0].numel))
    anchor.adopt(0, bits(published), pb.PullHeader(codec=pb.CODEC_BF16, value="a/1/3"))
    held = anchor.held(0, trains_on=trains_on)
    assert held is not None and held.tensors is None


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("weight", [torch.zeros(5, 7), torch.zeros(7, 5).t()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_progress_is_measured_however_the_parameter_lies_in_memory(
    weight: Tensor, dtype: torch.dtype, beside: bool
) -> None:
    layer = nn.Linear(7, 5, bias=False)
    layer.weight = nn.Parameter(weight.to(dtype, copy=True))
    carrier = Direct(Scratch(), torch.device("cpu") if beside else None)
    held = Anchors(outline(layer, Ranks()).cut().shards, carrier)
    held.adopt(0, bits(torch.from_numpy(values(35))), pb.PullHeader(codec=pb.CODEC_BF16))
    anchor = layer.weight.detach().float().clone()
    with torch.no_grad():
        layer.weight.sub_(torch.from_numpy(values(35, 1)).view(5, 7))
    progress = anchor - layer.weight.detach().float()
    assert fp32(held.pseudo_gradient(0)).tolist() == progress.reshape(-1).tolist()
    assert progress.any()
