"""What a run's rounds name as committed: by each revision's header, as it comes.

One thread for each fragment pulls the headers of all its revisions, one after the other, and no
values. Knows nothing of what the control plane counts: that is compared with it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx

from accounts import Push
from syncline_proto.status import NEWEST_TRAILER
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc

Course = list[tuple[float, int]]
"""(Seconds, tokens that were committed by then), one after the other."""

CALL_S = 10.0
AGAIN_S = 0.2


@dataclass
class Counted:
    """Of one fragment."""

    revision: int = 0
    committed_tokens: int = 0
    """As the newest header says."""
    pushes: dict[Push, int] = field(default_factory=dict[Push, int])
    """The accepted ones, and their tokens, each once."""
    twice_tokens: int = 0
    """Of those that were in a round before."""
    late: int = 0
    """Pushes that counted with an age."""
    courses: dict[str, Course] = field(default_factory=dict[str, "Course"])
    """Of each replica, as revisions with its pushes were seen."""
    missed: str = ""
    """Why a revision was not seen; empty: all were, and only then is the own count whole."""

    def take(self, header: pb.PullHeader) -> None:
        """Count a revision."""
        self.revision, self.committed_tokens = header.revision, header.committed_tokens
        now_s = time.monotonic()
        for push in header.contributions:
            if push.verdict != pb.VERDICT_ACCEPTED:
                continue
            key = (push.replica, push.incarnation), push.seq
            if key in self.pushes:
                self.twice_tokens += push.tokens
                continue
            self.pushes[key] = push.tokens
            course = self.courses.setdefault(push.replica, [])
            course.append((now_s, push.tokens + (course[-1][1] if course else 0)))
            self.late += push.age > 0


def addresses(api: httpx.Client) -> list[str]:
    """Where sync services listen, as the control plane knows once it is there itself."""
    with suppress(httpx.TransportError):
        return [one["address"] for one in api.get("/sync-services").raise_for_status().json()]
    return []


class Watch:
    """Counts all fragments of a run until it is closed; a context manager."""

    def __init__(self, address: str, token: str, run: str) -> None:
        """The run need not be there yet."""
        self.fragments: list[Counted] = []
        """Empty before that."""
        self._address, self._run = address, run
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._begin, daemon=True)]

    def __enter__(self) -> Watch:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in list(self._threads):
            thread.join(2 * CALL_S)

    @property
    def last(self) -> Counted:
        """The fragment whose tokens are the run's."""
        return self.fragments[-1] if self.fragments else Counted()

    def settle(self, seconds: float) -> None:
        """Return once no revision has come for so long."""
        before, since_s = -1, time.monotonic()
        while time.monotonic() < since_s + seconds:
            now = sum(one.revision for one in self.fragments)
            if now != before:
                before, since_s = now, time.monotonic()
            time.sleep(AGAIN_S)

    def _begin(self) -> None:
        """Follow every fragment, once the run has any."""
        with grpc.insecure_channel(self._address) as channel:
            stub = sync_pb2_grpc.SyncServiceStub(channel)
            request = pb.GetRunStatusRequest(run=self._run)
            while not self._stop.wait(AGAIN_S):
                with suppress(grpc.RpcError):
                    told = stub.GetRunStatus(request, timeout=CALL_S, metadata=self._metadata)
                    self.fragments = [Counted() for _ in told.fragments]
                if self.fragments:
                    break
        for number in range(len(self.fragments)):
            thread = threading.Thread(target=self._follow, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self, number: int) -> None:
        counted = self.fragments[number]
        with grpc.insecure_channel(self._address) as channel:
            stub = sync_pb2_grpc.SyncServiceStub(channel)
            while not self._stop.is_set():
                request = pb.PullRequest(
                    run=self._run,
                    fragment=number,
                    revision=counted.revision + 1,
                    header_only=True,
                )
                try:
                    answers = stub.Pull(request, timeout=CALL_S, metadata=self._metadata)
                    counted.take(next(iter(answers)).header)
                except grpc.RpcError as error:
                    assert isinstance(error, grpc.Call)
                    trailers: Any = error.trailing_metadata() or ()
                    newest = dict(trailers).get(NEWEST_TRAILER)
                    if newest is None:
                        self._stop.wait(AGAIN_S)
                        continue
                    counted.missed = error.details() or "a revision is gone"
                    counted.revision = int(newest) - 1
