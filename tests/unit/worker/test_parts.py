"""The messages of a push: a header, and the payload's chunks once there is room for them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from syncline.line import PushLine
from syncline.link import _parts
from syncline.payload import Encoded, Values
from syncline.stalled import Watched
from syncline_proto.codec import CODEC_BY_NAME, check_chunk, chunk_elements, encode
from syncline_proto.settings import CodecName
from syncline_proto.status import ROOM_HEADER
from syncline_proto.v1 import sync_pb2 as pb


def watched(*metadata: tuple[str, str]) -> Watched:
    """A call whose initial metadata has come."""

    class Call:
        def initial_metadata(self) -> tuple[tuple[str, str], ...]:
            return metadata

    found = Watched()
    found.begin(Call())
    return found


@pytest.mark.parametrize("codec", get_args(CodecName))
@pytest.mark.parametrize("beyond", [None, -1, 0, 1])
def test_the_bytes_are_those_of_the_whole(codec: CodecName, beyond: int | None) -> None:
    """``beyond`` two full chunks; None: an empty shard."""
    number = CODEC_BY_NAME[codec]
    size = 0 if beyond is None else 2 * chunk_elements(number) + beyond
    values = np.random.default_rng(0).standard_normal(size, np.float32)
    line = PushLine(1, 60.0)
    with line.turn(line.join()) as sending:
        header, *parts = _parts(
            pb.PushHeader(), Values(values, codec), watched((ROOM_HEADER, "granted")), sending
        )
        assert pb.PushRequest.FromString(header).HasField("header")
        with line.turn(line.join()):
            pass  # the turn was over with the last byte, not with the call
    left, sent = size, [pb.PushRequest.FromString(part).chunk for part in parts]
    for chunk in sent:
        left -= check_chunk(chunk, number, left)
    assert left == 0
    whole = bytes(encode(values, number)) if size else b""
    assert b"".join(chunk.data for chunk in sent) == whole


def test_nothing_is_sent_for_a_call_that_has_ended() -> None:
    payload = Encoded(np.ones(10, np.uint8), "bf16")
    line = PushLine(1, 60.0)
    with line.turn(line.join()) as sending:
        assert len(list(_parts(pb.PushHeader(), payload, watched(), sending))) == 1
