"""What comes of a chunk that is pulled."""

from __future__ import annotations

import numpy as np
import pytest

from syncline.pulled import taken
from syncline_proto.codec import crc32c
from syncline_proto.errors import ChunkDamaged, InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

VALUES = np.arange(4, dtype=np.float32)


def chunk(data: bytes, crc_off: int = 0) -> pb.Chunk:
    return pb.Chunk(data=data, crc32c=crc32c(data) ^ crc_off)


def test_what_was_damaged_on_the_way_is_to_be_asked_for_again() -> None:
    """Another copy of it may be whole; what is not what was asked for stays so."""
    out = np.zeros(4, np.float32)
    with pytest.raises(ChunkDamaged):
        taken(chunk(VALUES.tobytes(), crc_off=1), pb.CODEC_FP32, None, out)
    with pytest.raises(InvalidRequest, match="whole elements"):
        taken(chunk(b"odd"), pb.CODEC_FP32, None, out)
    assert not out.any()
    assert taken(chunk(VALUES.tobytes()), pb.CODEC_FP32, None, out) == 4
    assert np.array_equal(out, VALUES)
