"""A run that moves on while a revision is fetched: the newest is asked for until it comes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from syncline import exchange
from syncline.core.agreement import Answer
from syncline.exchange import Exchange
from syncline.layout import RankShard
from syncline.link import Link
from syncline.push import Identity, Outcome, Wanted
from syncline.scratch import Scratch
from syncline_proto.errors import EpochChanged, RevisionGone, SynclineError, Unreachable
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.settings import TimeoutSettings
from syncline_proto.status import CODE_TRAILER
from syncline_proto.v1 import sync_pb2 as pb

LAYOUT = Layout((TensorSpec("t", (1,), "float32"),), (FragmentSpec("head", (Box(0, (0,), (1,)),)),))
ME = Identity(run="run", replica="one", incarnation=1, rank=1, ranks=2)
EMPTY = RankShard((), 0)


class Impatient(TimeoutSettings):
    """Two round deadlines, and nothing on top."""

    @property
    def give_up_s(self) -> float:
        return 0.0


class MovesOn:
    """A service that drops what is asked for, so many times."""

    def __init__(self, times: int, why: type[SynclineError] = RevisionGone) -> None:
        self.times, self.why = times, why
        self.asked: list[int | None] = []
        """The revisions; None: the newest."""

    def pull(
        self, request: pb.PullRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.PullResponse]:
        self.asked.append(None if request.newest else request.revision)
        if len(self.asked) <= self.times:
            context.set_trailing_metadata(((CODE_TRAILER, self.why.code),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "It is gone.")
        yield pb.PullResponse(header=pb.PullHeader(revision=7))


@contextmanager
def pulling(service: MovesOn, timeouts: TimeoutSettings) -> Iterator[Exchange]:
    server = grpc.server(ThreadPoolExecutor(2))
    pull = grpc.unary_stream_rpc_method_handler(
        service.pull, pb.PullRequest.FromString, pb.PullResponse.SerializeToString
    )
    handler = grpc.method_handlers_generic_handler("syncline.sync.v1.SyncService", {"Pull": pull})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    made = Exchange(
        ME,
        LAYOUT,
        (EMPTY,),
        {0: Link(f"127.0.0.1:{port}", timeouts, None)},
        {0: 0},
        [0],
        timeouts,
        Scratch(),
    )
    try:
        yield made
    finally:
        made.close()
        server.stop(0).wait()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "AGAIN_S", 0.01)


@pytest.mark.parametrize("why", [RevisionGone, EpochChanged])
@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_the_newest_is_asked_for_until_it_comes(times: int, why: type[SynclineError]) -> None:
    service = MovesOn(times, why)
    with pulling(service, TimeoutSettings()) as made:
        outcome = made.begin_pull(0, Wanted(revision=3)).result(60)
    assert outcome.answer is Answer.MERGED and outcome.pulled is not None
    assert outcome.pulled.header.revision == 7
    assert service.asked == [3] + times * [None]


def test_patience_ends_it() -> None:
    timeouts = Impatient(lease=0.5, round_deadline=1.0)
    with pulling(MovesOn(1 << 30), timeouts) as made:
        outcome: Outcome = made.begin_pull(0, Wanted()).result(60)
    assert outcome.answer is Answer.FAILED and isinstance(outcome.error, Unreachable)
    assert "Revisions of head were replaced before they could be fetched" in str(outcome.error)
    assert "min_replicas" not in str(outcome.error), "rounds close; more replicas would not help"
