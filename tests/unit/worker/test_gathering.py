"""Gathering: what is sent is what encoding all of it at once gives, wherever it lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from syncline import gathering
from syncline.gathering import Part, Window
from syncline_proto.codec import CODECS, Codec, Float32, UInt8, UInt16

SMALL = 8192
"""A window that some tests have, so that little goes through it several times."""


def gathered(parts: list[Part], codec: Codec) -> UInt8:
    out = np.empty(codec.size(sum(part.values.numel() for part in parts)), np.uint8)
    Window().gather(parts, codec, out)
    return out


def normal(*sizes: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(sizes)).normal(size=sizes)).float()


def bits(values: Tensor) -> UInt16:
    return values.bfloat16().view(torch.int16).numpy().view(np.uint16)


def as_fp32(anchor: Float32 | UInt16) -> Float32:
    if anchor.dtype == np.float32:
        return anchor.view(np.float32)
    return (anchor.astype(np.uint32) << np.uint32(16)).view(np.float32)


@given(
    sizes=st.lists(st.integers(0, 3 * SMALL), min_size=1, max_size=5),
    codec=st.sampled_from(CODECS),
    is_narrow=st.booleans(),
)
def test_progress_is_encoded_as_if_all_at_once(
    sizes: list[int], codec: Codec, is_narrow: bool
) -> None:
    values = [normal(size) for size in sizes]
    anchors = [bits(part.flip(0)) if is_narrow else part.flip(0).numpy().copy() for part in values]
    parts = [Part(part, anchor) for part, anchor in zip(values, anchors, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "WINDOW", SMALL)
        out = gathered(parts, codec)
    less = [as_fp32(a) - v.numpy() for a, v in zip(anchors, values, strict=True)]
    assert out.tobytes() == bytes(codec.encode(np.concatenate(less)))


@given(
    parts=st.lists(
        st.tuples(
            st.integers(0, SMALL + 300),
            st.sampled_from([torch.float32, torch.bfloat16]),
            st.sampled_from(["bf16", "fp32", "none"]),
        ),
        min_size=2,
        max_size=6,
    ),
    codec=st.sampled_from(CODECS),
)
def test_what_goes_straight_and_what_does_not_follow_each_other(
    parts: list[tuple[int, torch.dtype, str]], codec: Codec
) -> None:
    given, told = [], []
    for size, dtype, kind in parts:
        values, start = normal(size).to(dtype), normal(size + 1)[:size]
        anchor = {"bf16": bits(start), "fp32": start.numpy(), "none": None}[kind]
        given.append(Part(values, anchor))
        plain = values.float().numpy()
        told.append(plain if anchor is None else as_fp32(anchor) - plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "WINDOW", SMALL)
        assert gathered(given, codec).tobytes() == bytes(codec.encode(np.concatenate(told)))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_window_ends_where_a_chunk_of_any_codec_may(codec: Codec) -> None:
    for size in (gathering.WINDOW, SMALL):
        assert size % codec.grain == size % codec.block == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
def test_values_are_read_of_any_type_however_they_lie(dtype: torch.dtype, turned: bool) -> None:
    values = normal(70, 50).to(dtype)
    values = values.t() if turned else values
    codec = CODECS[0]
    plain = values.float().reshape(-1).numpy()
    assert gathered([Part(values)], codec).view(np.float32).tolist() == plain.tolist()
    less = gathered([Part(values, np.ones(values.numel(), np.float32))], codec)
    assert less.view(np.float32).tolist() == (np.float32(1.0) - plain).tolist()


def test_the_model_stays_as_it_is() -> None:
    values = normal(100)
    before = values.clone()
    gathered([Part(values, np.zeros(100, np.float32)), Part(values)], CODECS[0])
    assert torch.equal(values, before)
