"""Chunks written and read without protobuf: the very bytes that protobuf writes and reads."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from syncline_proto.parts import Chunk, read_chunk, write_chunk
from syncline_proto.v1 import sync_pb2 as pb

data_of_any_size = st.one_of(
    st.binary(max_size=300),
    # Where a length of the message takes another byte.
    st.sampled_from([110, 119, 120, 126, 127, 128, 16_370, 16_383, 16_384, 1 << 20]).map(bytes),
)


@given(data_of_any_size, st.integers(0, 2**32 - 1))
def test_a_chunk_is_written_as_protobuf_reads_it(data: bytes, crc: int) -> None:
    message = write_chunk(Chunk(data, crc))
    for kind in (pb.PushRequest, pb.PullResponse):
        assert kind.FromString(message) == kind(chunk=pb.Chunk(data=data, crc32c=crc))
    assert read_chunk(message) == Chunk(data, crc)


@given(data_of_any_size.filter(len), st.integers(1, 2**32 - 1))
def test_a_chunk_is_read_as_protobuf_writes_it(data: bytes, crc: int) -> None:
    chunk = pb.Chunk(data=data, crc32c=crc)
    assert write_chunk(Chunk(data, crc)) == pb.PushRequest(chunk=chunk).SerializeToString()


@given(st.binary(max_size=40))
@example(pb.PushRequest(header=pb.PushHeader(run="r")).SerializeToString())
@example(pb.PushRequest(chunk=pb.Chunk(data=b"x")).SerializeToString())
@example(b"")
@example(b"\x12\x80\x80\x80\x80\x80\x80")
def test_whatever_is_read_protobuf_would_have_read_too(message: bytes) -> None:
    chunk = read_chunk(message)
    if chunk is not None:
        theirs = pb.PushRequest.FromString(message).chunk
        assert (theirs.data, theirs.crc32c) == (chunk.data, chunk.crc32c)


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1), st.data())
def test_a_message_that_is_changed_anywhere_is_never_read_wrongly(
    data: bytes, crc: int, draw: st.DataObject
) -> None:
    message = bytearray(write_chunk(Chunk(data, crc)))
    at = draw.draw(st.integers(0, len(message) - 1))
    message[at] = draw.draw(st.integers(0, 255))
    test_whatever_is_read_protobuf_would_have_read_too.hypothesis.inner_test(bytes(message))  # pyright: ignore[reportFunctionMemberAccess]
