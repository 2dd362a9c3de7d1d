"""What a link makes of answers that are none, of faults of its own, and of its own end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

import grpc
import pytest

from syncline import link as links
from syncline.link import Link
from syncline.scratch import Scratch
from syncline.stalled import Watched
from syncline_proto.codec import crc32c
from syncline_proto.errors import InvalidRequest, Unreachable
from syncline_proto.settings import TimeoutSettings
from syncline_proto.status import PUBLISHED_TRAILER
from syncline_proto.v1 import sync_pb2 as pb

Trailers: TypeAlias = tuple[tuple[str, str], ...]

HEADER = pb.PullResponse(header=pb.PullHeader(elements=1, codec=pb.CODEC_FP32))
CHUNK = pb.PullResponse(chunk=pb.Chunk(data=bytes(4), crc32c=crc32c(bytes(4))))


@contextmanager
def answering(
    *parts: bytes, ends: threading.Event | None = None, trailers: Trailers = ()
) -> Iterator[Link]:
    """A link to who answers every pull with these messages and trailers.

    With ``ends`` no answer comes to its end before its reader leaves, which sets that.
    """

    def answer(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        if ends is not None:
            context.add_callback(ends.set)
            has_left = ends.wait
            return iter(lambda: None if has_left(0.01) else parts[0], None)
        context.set_trailing_metadata(trailers)
        return iter(parts)

    server = grpc.server(ThreadPoolExecutor(2))
    pull = grpc.unary_stream_rpc_method_handler(answer)
    handler = grpc.method_handlers_generic_handler("syncline.sync.v1.SyncService", {"Pull": pull})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link = Link(f"127.0.0.1:{port}", TimeoutSettings(), None)
    try:
        yield link
    finally:
        link.close()
        server.stop(0).wait()


@pytest.mark.parametrize("before", [(), (HEADER.SerializeToString(),)])
def test_what_is_no_message_is_not_what_was_asked_for(before: tuple[bytes, ...]) -> None:
    """No patience changes that, as it would that of a service which ended the call."""
    with answering(*before, b"\xff") as link, pytest.raises(InvalidRequest, match="no message"):
        link.pull(pb.PullRequest(), 1, Scratch())


def test_the_header_is_progress_as_a_chunk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who has waited long for a revision would be cut off before its first chunk."""
    moves: list[Watched] = []
    moved = Watched.moved
    monkeypatch.setattr(Watched, "moved", lambda one: (moves.append(one), moved(one)))
    with answering(*(part.SerializeToString() for part in (HEADER, CHUNK))) as link:
        link.pull(pb.PullRequest(), 1, Scratch())
    assert len(moves) == 2


@pytest.mark.parametrize(
    ("header_s", "trailer", "ago_s"),
    [(30.0, None, 30.0), (0.0, None, 0.0), (0.0, "500.5", 500.5), (0.0, "-1", 0.0)],
)
def test_the_trailer_tells_when_it_was_where_the_header_came_too_early_for_that(
    header_s: float, trailer: str | None, ago_s: float
) -> None:
    header = pb.PullHeader(elements=1, codec=pb.CODEC_FP32, published_ago_s=header_s)
    parts = [pb.PullResponse(header=header), CHUNK]
    told: Trailers = () if trailer is None else ((PUBLISHED_TRAILER, trailer),)
    with answering(*(part.SerializeToString() for part in parts), trailers=told) as link:
        before_s = time.monotonic()
        pulled = link.pull(pb.PullRequest(), 1, Scratch())
    assert before_s <= pulled.published_s + ago_s <= time.monotonic()


def test_a_trailer_that_is_no_number_is_not_what_was_asked_for() -> None:
    parts = [part.SerializeToString() for part in (HEADER, CHUNK)]
    no_number = pytest.raises(InvalidRequest, match="'soon', no number")
    told = ((PUBLISHED_TRAILER, "soon"),)
    with answering(*parts, trailers=told) as link, no_number:
        link.pull(pb.PullRequest(), 1, Scratch())


def test_an_answer_that_is_not_what_was_asked_for_has_left_no_further() -> None:
    """Though the error is kept, and with it what was at hand: the service keeps a turn."""
    ends = threading.Event()
    with answering(HEADER.SerializeToString(), ends=ends) as link:
        with pytest.raises(InvalidRequest, match="1 elements came, not 2") as kept:
            link.pull(pb.PullRequest(), 2, Scratch())
        assert ends.wait(10)
    assert kept.tb is not None


def test_a_fault_of_ours_is_no_end_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise ValueError("operands could not be broadcast")

    monkeypatch.setattr(links.Incoming, "take", broken)
    parts = [part.SerializeToString() for part in (HEADER, CHUNK)]
    with answering(*parts) as link, pytest.raises(ValueError, match="broadcast"):
        link.pull(pb.PullRequest(), 1, Scratch())


def test_a_link_that_was_closed_reaches_nobody() -> None:
    with answering() as link:
        link.close()
        for call in (lambda: link.status("r"), lambda: link.pull(pb.PullRequest(), 1, Scratch())):
            with pytest.raises(Unreachable, match="closed"):
                call()
