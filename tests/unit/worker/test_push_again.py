"""A service that starts anew between a push's verdict and the pull: the push comes again.

Its verdict was the word of a process that is no more, and what was only in memory went with it. The
new one may publish the very revision without the push: to take that for the result loses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import nn

from syncline import exchange
from syncline.core.agreement import Answer
from syncline.exchange import Exchange
from syncline.layout import Piece, RankShard
from syncline.link import Link
from syncline.payload import Values
from syncline.push import Identity, Outcome, Push
from syncline.scratch import Scratch
from syncline_proto.codec import chunks, encode
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.ranges import NOTHING, Range, Ranges
from syncline_proto.settings import TimeoutSettings
from syncline_proto.status import ROOM_HEADER
from syncline_proto.v1 import sync_pb2 as pb

BOX = Box(0, (0,), (1,))
LAYOUT = Layout((TensorSpec("t", (1,), "float32"),), (FragmentSpec("head", (BOX,)),))
ME = Identity(run="run", replica="one", incarnation=1, rank=0, ranks=1)
OLD, NEW = "old", "new"

Life = tuple[pb.Verdict.ValueType, str, bool]
"""How the push is judged, by whom the result is told, and whether that contains the push."""


class Reborn:
    """A service whose process may be another one at each call."""

    def __init__(self, *lives: Life, first_is_late: bool = False) -> None:
        self._lives, self._first_is_late = iter(lives), first_is_late
        self.pushed: list[int] = []
        """The ``seq`` of each push that came."""

    def push(self, parts: Iterator[pb.PushRequest], context: Any) -> pb.PushResponse:
        header = next(parts).header
        context.send_initial_metadata(((ROOM_HEADER, "granted"),))
        assert sum(len(part.chunk.data) for part in parts) == 4
        self.pushed.append(header.seq)
        self._verdict, self._teller, self._contains = next(self._lives)
        counts_in = 5 if len(self.pushed) == 1 and self._first_is_late else 0
        return pb.PushResponse(
            verdict=self._verdict, judged=self._verdict, result_revision=4, counts_in=counts_in
        )

    def pull(self, request: pb.PullRequest, context: Any) -> Iterator[pb.PullResponse]:
        mine = pb.Contribution(replica="one", incarnation=1, seq=self.pushed[-1])
        other = pb.Contribution(replica="two", incarnation=1, seq=9)
        header = pb.PullHeader(
            revision=4,
            instance=self._teller,
            codec=pb.CODEC_FP32,
            elements=1,
            contributions=[mine, other] if self._contains else [other],
        )
        yield pb.PullResponse(header=header)
        data = encode(np.ones(1, np.float32), pb.CODEC_FP32)
        for chunk in chunks(data, pb.CODEC_FP32):
            yield pb.PullResponse(chunk=pb.Chunk(data=bytes(chunk.data), crc32c=chunk.crc32c))


@contextmanager
def exchanging(service: Reborn) -> Iterator[Exchange]:
    server = grpc.server(ThreadPoolExecutor(2))
    calls = {
        "Push": grpc.stream_unary_rpc_method_handler(
            service.push, pb.PushRequest.FromString, pb.PushResponse.SerializeToString
        ),
        "Pull": grpc.unary_stream_rpc_method_handler(
            service.pull, pb.PullRequest.FromString, pb.PullResponse.SerializeToString
        ),
    }
    handler = grpc.method_handlers_generic_handler("syncline.sync.v1.SyncService", calls)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    timeouts = TimeoutSettings()
    link = Link(f"127.0.0.1:{port}", timeouts, None)
    link.instance = OLD
    shard = RankShard((Piece(nn.Parameter(torch.ones(1)), (slice(1),), BOX, 0, True),), 1)
    made = Exchange(ME, LAYOUT, (shard,), {0: link}, {0: 1}, [0], timeouts, Scratch())
    try:
        yield made
    finally:
        made.close()
        server.stop(0).wait()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "AGAIN_S", 0.01)


def push_of(data: Ranges = NOTHING) -> Push:
    values = Values(np.ones(1, np.float32), "fp32")
    kind = pb.PUSH_KIND_PSEUDO_GRADIENT
    return Push(fragment=0, kind=kind, payload=values, base=3, epoch=1, data=data)


def result_of(service: Reborn) -> Outcome:
    with exchanging(service) as made:
        return made.begin(push_of()).result(60)


def test_a_push_that_the_new_process_has_not_got_comes_again() -> None:
    service = Reborn((pb.VERDICT_ACCEPTED, NEW, False), (pb.VERDICT_STALE, NEW, False))
    assert result_of(service).answer is Answer.STALE, "so its progress goes into the next"
    assert service.pushed == [1, 1], "unchanged"


@pytest.mark.parametrize(
    "life",
    [
        (pb.VERDICT_ACCEPTED, OLD, True),
        (pb.VERDICT_ACCEPTED, NEW, True),
        (pb.VERDICT_STALE, NEW, False),
    ],
)
def test_one_that_is_in_or_was_stale_comes_once(life: Life) -> None:
    service = Reborn(life)
    answer = result_of(service).answer
    assert answer is (Answer.STALE if life[0] == pb.VERDICT_STALE else Answer.MERGED)
    assert service.pushed == [1]


@pytest.mark.parametrize("again", [pb.VERDICT_STALE, pb.VERDICT_ACCEPTED])
def test_who_finds_a_forgotten_push_too_old_tells_what_data_it_held(
    again: pb.Verdict.ValueType,
) -> None:
    lives = (pb.VERDICT_ACCEPTED, OLD, True), (pb.VERDICT_ACCEPTED, NEW, True), (again, NEW, True)
    service = Reborn(*lives, first_is_late=True)
    with exchanging(service) as made:
        first = made.begin(push_of((Range(0, 0, 4),))).result(60)
        assert first.is_kept and not first.lost
        then = made.begin(push_of((Range(0, 4, 8),))).result(60)
    assert service.pushed == [1, 2, 1]
    assert then.lost == ((Range(0, 0, 4),) if again == pb.VERDICT_STALE else NOTHING)
