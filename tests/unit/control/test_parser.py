"""What the parser bounds: chunks by their bytes, heads and trailers that come all at once."""

from __future__ import annotations

import h11

from syncline_control.parser import CHUNK_BYTES, CHUNKS_FREE, SLICE, Parser

HEAD_MAX = 1 << 10
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LINES = b"a:\r\n" * (2 * SLICE // 4)


def events(data: bytes) -> list[h11.Event]:
    """All events in what came at once, up to a refusal (ConnectionClosed stands for it)."""
    parser, seen = Parser(HEAD_MAX), list[h11.Event]()
    parser.receive_data(data)
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return [*seen, h11.ConnectionClosed()]
        if not isinstance(event, h11.Event):
            return seen
        seen.append(event)


def kinds(seen: list[h11.Event]) -> list[str]:
    return [type(one).__name__ for one in seen]


def chunks(count: int, size: int) -> bytes:
    return count * (b"%x\r\n" % size + b" " * size + b"\r\n")


def test_tiny_chunks_are_parsed_up_to_the_bound_and_no_further() -> None:
    seen = events(CHUNKED + chunks(100_000, 1))
    assert kinds(seen[-2:]) == ["Data", "ConnectionClosed"]
    assert CHUNKS_FREE <= len(seen) < CHUNKS_FREE + 10


def test_chunks_that_hold_enough_may_be_many_and_are_whole() -> None:
    body = chunks(CHUNKS_FREE, 1) + chunks(10 * CHUNKS_FREE, CHUNK_BYTES) + b"0\r\n\r\n"
    seen = events(CHUNKED + body)
    assert kinds(seen)[-1] == "EndOfMessage"
    came = sum(len(one.data) for one in seen if isinstance(one, h11.Data))
    assert came == CHUNKS_FREE + 10 * CHUNKS_FREE * CHUNK_BYTES


def test_pieces_that_the_network_makes_do_not_count() -> None:
    size = 4 * CHUNKS_FREE
    for head, end in (
        (HEAD + b"Content-Length: %d\r\n\r\n" % size, b""),
        (CHUNKED + b"%x\r\n" % size, b"\r\n0\r\n\r\n"),
    ):
        parser, seen = Parser(HEAD_MAX), list[str]()
        for part in [head, *[b" "] * size, end]:
            parser.receive_data(part)
            while isinstance(event := parser.next_event(), h11.Event):
                seen.append(type(event).__name__)
        assert seen == ["Request", *["Data"] * size, "EndOfMessage"]


def test_a_head_or_trailer_that_comes_all_at_once_is_bounded_like_any() -> None:
    assert kinds(events(HEAD + LINES + b"\r\n")) == ["ConnectionClosed"]
    trailer = CHUNKED + b"0\r\n" + LINES + b"\r\n"
    assert kinds(events(trailer)) == ["Request", "ConnectionClosed"]
    fits = b"a:\r\n" * 100 + b"\r\n"
    assert kinds(events(HEAD + fits)) == ["Request", "EndOfMessage"]
    assert kinds(events(CHUNKED + b"0\r\n" + fits)) == ["Request", "EndOfMessage"]


def test_a_body_has_one_length() -> None:
    """A proxy that goes by the other would take a part of the body for the next request."""
    for both in (CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n", HEAD + b"Content-Length: 5\r\n"
                 b"transfer-encoding: chunked\r\n\r\n"):  # fmt: skip
        assert kinds(events(both + b"0\r\n\r\n" + HEAD + b"\r\n")) == ["ConnectionClosed"]
    assert kinds(events(HEAD + b"Content-Length: 5\r\n\r\nabcde"))[-1] == "EndOfMessage"
