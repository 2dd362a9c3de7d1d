"""What is read from the wire: the message, without what it carries that nobody here knows."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from syncline_proto.counts import BOXES_MAX, TENSORS_MAX
from syncline_proto.errors import InvalidRequest, Overloaded
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.reading import LARGE, MIDDLING, THING_BYTES, Reader, parsed

BOX = pb.Box(tensor=1, offsets=[2], sizes=[3])


def unknown(size: int) -> bytes:
    """A field of so many bytes under a number that no message of ours has."""
    number, length = (1000 << 3) | 2, size
    out = bytearray()
    for value in (number, length):
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out) + bytes(size)


@pytest.mark.parametrize("inside", [False, True])
def test_what_nobody_knows_is_not_kept(inside: bool) -> None:
    header = pb.PushHeader(run="r", boxes=[BOX], base_revision=0)
    if inside:
        header.MergeFromString(unknown(8 * LARGE))
    data = pb.PushRequest(header=header).SerializeToString()
    read = parsed(pb.PushRequest.FromString, "Push", data + (b"" if inside else unknown(8 * LARGE)))
    assert read.ByteSize() < 100
    assert read.header.run == "r" and list(read.header.boxes) == [BOX]
    assert read.header.HasField("base_revision")


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_chunk_is_read_as_it_is(size: int) -> None:
    sent = pb.PushRequest(chunk=pb.Chunk(data=bytes(range(10)) * (size // 10), crc32c=7))
    assert parsed(pb.PushRequest.FromString, "Push", sent.SerializeToString()) == sent


def test_bytes_that_are_no_message_are_the_senders_fault() -> None:
    with pytest.raises(InvalidRequest, match="^request: .*send the method's own message"):
        parsed(pb.PushRequest.FromString, "Push", b"\xff" * 10)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (pb.PushRequest(header=pb.PushHeader(boxes=[pb.Box()] * (BOXES_MAX + 1))), "boxes"),
        (pb.PushRequest(header=pb.PushHeader(boxes=[pb.Box(offsets=[1] * LARGE)])), "boxes"),
        (pb.PushRequest(header=pb.PushHeader(boxes=[pb.Box(sizes=[1] * LARGE)])), "boxes"),
        (pb.PushRequest(header=pb.PushHeader(data=[pb.DataRange()] * LARGE)), "data"),
        (pb.PullRequest(boxes=[pb.Box()] * (BOXES_MAX + 1)), "boxes"),
        (
            pb.OpenRunRequest(layout=pb.Layout(tensors=[pb.Tensor()] * (TENSORS_MAX + 1))),
            "layout.tensors",
        ),
        (
            pb.OpenRunRequest(
                layout=pb.Layout(
                    tensors=[pb.Tensor(aliases=["w"] * TENSORS_MAX)], fragments=[pb.Fragment()]
                )
            ),
            "layout.tensors",
        ),
        (
            pb.OpenRunRequest(
                layout=pb.Layout(tensors=[pb.Tensor(shape=[1] * LARGE)], fragments=[pb.Fragment()])
            ),
            "layout.tensors",
        ),
        (
            pb.OpenRunRequest(
                layout=pb.Layout(
                    tensors=[pb.Tensor()],
                    fragments=[pb.Fragment(boxes=[pb.Box()] * BOXES_MAX)] * 8,
                )
            ),
            "layout.fragments",
        ),
    ],
    ids=[
        *("push", "offsets", "sizes", "data", "pull"),
        *("tensors", "names", "shape", "boxes of all fragments"),
    ],
)
def test_a_message_of_too_many_things_is_gone_before_its_sender_is_told(
    message: Any, why: str
) -> None:
    """In memory an empty box is 30 times what it is on the wire, and refusals wait for readers."""
    data = message.SerializeToString()
    with pytest.raises(InvalidRequest, match=rf"^{why}: ") as error:
        parsed(type(message).FromString, "method", data)
    frames = [frame for frame, _ in traceback.walk_tb(error.tb)][1:]  # without this test's own
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert frames and not any(isinstance(value, type(message)) for value in held)


def heavy(method: str, many: int) -> Any:
    """A request of so many boxes."""
    boxes = [BOX] * many
    if method == "Pull":
        return pb.PullRequest(boxes=boxes)
    if method == "Push":
        return pb.PushRequest(header=pb.PushHeader(boxes=boxes))
    layout = pb.Layout(tensors=[pb.Tensor()], fragments=[pb.Fragment(boxes=boxes)])
    return pb.OpenRunRequest(layout=layout)


@pytest.mark.parametrize("many", [20_000, 1_000, 300])
@pytest.mark.parametrize("method", ["Pull", "Push", "OpenRun"])
def test_a_request_counts_by_what_it_names_until_its_call_has_ended(method: str, many: int) -> None:
    """On the wire three of them would have room."""
    data = heavy(method, many).SerializeToString()
    most = 5 * THING_BYTES * many // 4
    assert len(data) < most // 3
    assert (len(data) > MIDDLING) == (many > 300)
    is_large = len(data) > LARGE
    reader = Reader(most, 0) if is_large else Reader(0, most)  # each kind has its own
    kind = type(heavy(method, many))

    async def stream() -> AsyncIterator[bytes]:
        yield data

    @asynccontextmanager
    async def read() -> AsyncIterator[None]:
        if method == "Push":
            async with reader._many(kind.FromString, "/Push", stream()) as messages:
                _ = [message async for message in messages]
                yield
        else:
            async with reader._one(kind.FromString, method, data):
                yield

    async def scenario() -> None:
        for _ in range(2):
            async with read():
                with pytest.raises(Overloaded) as error:
                    async with read():
                        pass
                frames = [frame for frame, _ in traceback.walk_tb(error.tb)]
                held = [value for frame in frames for value in frame.f_locals.values()]
                assert not any(isinstance(value, kind) for value in held)

    asyncio.run(scenario())


def test_small_requests_are_not_counted_by_what_they_are() -> None:
    async def scenario() -> None:
        reader, data = Reader(0, 0), pb.PullRequest(run="r", boxes=[BOX] * 100).SerializeToString()
        async with reader._one(pb.PullRequest.FromString, "Pull", data) as message:
            assert len(message.boxes) == 100

    asyncio.run(scenario())


@pytest.mark.parametrize("is_stream", [False, True])
def test_so_many_calls_are_read_at_a_time_and_no_more_whatever_they_ask_for(
    is_stream: bool,
) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        return
        yield b""

    @asynccontextmanager
    async def read(reader: Reader) -> AsyncIterator[None]:
        if is_stream:  # one that says nothing costs as much
            async with reader._many(pb.PushRequest.FromString, "/Push", nothing()):
                yield
        else:
            async with reader._one(pb.PullRequest.FromString, "Pull", b""):
                yield

    async def scenario() -> None:
        reader = Reader(under_way_max=2)
        for _ in range(2):  # those that have ended leave their places
            async with read(reader), read(reader):
                with pytest.raises(Overloaded, match="too many calls"):
                    async with read(reader):
                        pass

    asyncio.run(scenario())
