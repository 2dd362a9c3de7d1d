"""What a link makes of answers that are none, of faults of its own, and of its own end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from syncline import link as links
from syncline.link import Link
from syncline.scratch import Scratch
from syncline_proto.errors import InvalidRequest, Unreachable
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb

HEADER = pb.PullResponse(header=pb.PullHeader(elements=1, codec=pb.CODEC_FP32))
CHUNK = pb.PullResponse(chunk=pb.Chunk(data=bytes(4)))


@contextmanager
def answering(*parts: bytes) -> Iterator[Link]:
    """A link to who answers every pull with these messages."""
    server = grpc.server(ThreadPoolExecutor(2))
    pull = grpc.unary_stream_rpc_method_handler(lambda request, context: iter(parts))
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
