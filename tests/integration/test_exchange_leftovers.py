"""What a worker sends and receives is freed when its call has failed, not with some collection.

The garbage collector comes when many objects have been made, and knows nothing of how large they
are; a push is as large as a shard. The service here answers as it is told to; the rest is real.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from torch import nn

from syncline.core.agreement import Answer
from syncline.exchange import Exchange
from syncline.layout import Piece, RankShard
from syncline.link import Link
from syncline.payload import Encoded
from syncline.push import Identity, Outcome, Push, Wanted
from syncline.scratch import Scratch
from syncline_proto.codec import UInt8, chunks, encode
from syncline_proto.layout import Box
from syncline_proto.settings import TimeoutSettings
from syncline_proto.status import CODE_TRAILER, ROOM_HEADER
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.service import flat_layout
from syncline_testing.waiting import wait_until

SIZE = 1 << 18
LAYOUT = flat_layout(SIZE)
STATUS = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "LEASE_LOST": grpc.StatusCode.PERMISSION_DENIED,
}


class Hurried(TimeoutSettings):
    """Who does not answer is given up after a few calls."""

    @property
    def call_s(self) -> float:
        return 0.5

    @property
    def give_up_s(self) -> float:
        return 0.7


class Broken(sync_pb2_grpc.SyncServiceServicer):
    """Ends every push and pull with ``code``, once some of it has come; without one, never."""

    def __init__(self, code: str) -> None:
        self._code = code

    def Push(self, request_iterator: Iterator[pb.PushRequest], context: Any) -> Any:
        next(request_iterator)
        context.send_initial_metadata(((ROOM_HEADER, "granted"),))
        for _ in request_iterator:
            pass
        self._end(context)

    def Pull(self, request: pb.PullRequest, context: Any) -> Iterator[pb.PullResponse]:
        yield pb.PullResponse(header=pb.PullHeader(elements=SIZE, codec=pb.CODEC_FP32, epoch=1))
        first = next(iter(chunks(encode(np.ones(1024, np.float32), pb.CODEC_FP32), pb.CODEC_FP32)))
        yield pb.PullResponse(chunk=pb.Chunk(data=bytes(first.data), crc32c=first.crc32c))
        self._end(context)

    def OpenRun(self, request: Any, context: Any) -> pb.OpenRunResponse:
        return pb.OpenRunResponse(epoch=1, instance="one")

    def GetRunStatus(self, request: Any, context: Any) -> pb.GetRunStatusResponse:
        return pb.GetRunStatusResponse(epoch=1, instance="one")

    def _end(self, context: Any) -> None:
        if self._code:
            context.set_trailing_metadata(((CODE_TRAILER, self._code),))
            context.abort(STATUS[self._code], "No.")
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait()


class Noted(Scratch):
    """Knows, by weak references, what was taken from it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[weakref.ref[UInt8]] = []

    def take(self, size: int) -> UInt8:
        memory = super().take(size)
        self.taken.append(weakref.ref(memory))
        return memory


@contextmanager
def exchange(code: str, scratch: Scratch) -> Iterator[Exchange]:
    """Of one rank, with a service that ends its calls with ``code``; "AWAY": there is none."""
    server = grpc.server(ThreadPoolExecutor(4))
    sync_pb2_grpc.add_SyncServiceServicer_to_server(Broken(code), server)
    port = server.add_insecure_port("127.0.0.1:0")
    if code == "AWAY":
        server.stop(0).wait()
    else:
        server.start()
    link = Link(f"127.0.0.1:{port}", Hurried(), None)
    me = Identity(run="run", replica="a", incarnation=1, rank=0, ranks=1)
    shard = RankShard((Piece(nn.Parameter(), (), Box(0, (0,), (SIZE,)), 0, True),), SIZE)
    made = Exchange(me, LAYOUT, (shard,), {0: link}, {0: 1}, [0], Hurried(), scratch)
    try:
        yield made
    finally:
        made.close()
        server.stop(0).wait()


@contextmanager
def nothing_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("code", ["INVALID_REQUEST", "LEASE_LOST", "UNREACHABLE", "AWAY", ""])
def test_a_push_that_fails_keeps_nothing_of_what_it_sent(code: str) -> None:
    """Refused, broken off again and again, without a service, or never answered."""

    def pushed(made: Exchange) -> tuple[weakref.ref[Any], Future[Outcome]]:
        memory = np.ones(SIZE, np.float32).view(np.uint8)
        kind = pb.PUSH_KIND_PSEUDO_GRADIENT
        push = Push(fragment=0, kind=kind, payload=Encoded(memory), base=0, tokens=1)
        return weakref.ref(memory), made.begin(push)

    with exchange(code, Scratch()) as made, nothing_collected():
        sent, future = pushed(made)
        outcome = future.result(60)
        assert outcome.answer is (Answer.FENCED if code == "LEASE_LOST" else Answer.FAILED)
        wait_until(lambda: sent() is None, 30, "the memory of the push is free")


@pytest.mark.parametrize("code", ["INVALID_REQUEST", "LEASE_LOST", "UNREACHABLE", ""])
def test_a_pull_that_fails_keeps_nothing_of_what_came(code: str) -> None:
    """Refused in its midst, broken off again and again, or never ended."""
    scratch = Noted()
    with exchange(code, scratch) as made, nothing_collected():
        outcome = made.begin_pull(0, Wanted(revision=1)).result(60)
        assert outcome.answer is (Answer.FENCED if code == "LEASE_LOST" else Answer.FAILED)
        assert scratch.taken
        wait_until(
            lambda: not any(memory() is not None for memory in scratch.taken),
            30,
            "the memory of the pulls is free",
            lambda: sum(memory() is not None for memory in scratch.taken),
        )
