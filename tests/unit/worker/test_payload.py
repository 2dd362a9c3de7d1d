"""What a push carries: the same chunks whether it was encoded before or on the way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest

from syncline.payload import Encoded, Later, Values
from syncline_proto.codec import CODEC_BY_NAME, Float32, check_chunk, encode, published
from syncline_proto.settings import CodecName


def normal(count: int) -> Float32:
    return np.random.default_rng(count).normal(size=count).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 5000, (2 << 20) + 77])
@pytest.mark.parametrize("codec", get_args(CodecName))
def test_early_or_late_the_chunks_are_the_same(codec: CodecName, count: int) -> None:
    values = normal(count)
    whole = np.frombuffer(encode(values, CODEC_BY_NAME[codec]), np.uint8)
    early, late = Encoded(whole, codec), Values(values, codec)
    assert early.size == late.size == whole.size
    chunks = list(late.chunks())
    assert b"".join(bytes(chunk.data) for chunk in chunks) == whole.tobytes()
    assert b"".join(bytes(chunk.data) for chunk in early.chunks()) == whole.tobytes()
    left = count
    for chunk in chunks:
        left -= check_chunk(chunk, CODEC_BY_NAME[codec], left)
    assert left == 0


@pytest.mark.parametrize("codec", get_args(CodecName))
def test_what_a_codec_loses_is_told_where_it_is_kept(codec: CodecName) -> None:
    values = normal(5000)
    loss = Values(values, codec).loss()
    if codec in ("int4", "topk"):
        assert loss is not None
        assert (loss == values - published(values, CODEC_BY_NAME[codec])).all()
    else:
        assert loss is None


def test_two_threads_that_look_make_it_be_here_once() -> None:
    begun, may_end, acts = threading.Event(), threading.Event(), []

    def act() -> None:
        acts.append(len(acts))
        begun.set()
        assert may_end.wait(10)

    payload = Encoded(np.zeros(4, np.uint8), finish=Later(act))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(payload.here)
        assert begun.wait(10)
        second = pool.submit(payload.here)
        assert not second.done(), "it is not here yet"
        may_end.set()
        assert first.result(10) is second.result(10)
    assert acts == [0]
