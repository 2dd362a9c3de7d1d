"""A real service under fire, in this process: what is sent, what must be true after it.

Every example meets a run at ``REVISION``. What counts of it must be what ``rules`` says; all else
must be refused under a code of ours, and leave every fragment as it was to the bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fuzz.examples import at_work
from fuzz.rules import Counted, counted, is_whole, may_be_judged, must_be_answered
from fuzz.streams import LAYOUT, REVISION, RUN, Stream
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync.budget import Budget, Reservation
from syncline_sync.servicer import SyncServicer
from syncline_sync.shard import Shard
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging
from syncline_testing.service import BROKEN, BROKEN_MAX, code_of, service

PUSH = "/syncline.sync.v1.SyncService/Push"
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)
START = [
    np.random.default_rng(i).standard_normal(f.numel).astype(np.float32)
    for i, f in enumerate(LAYOUT.fragments)
]
MEMBERS = {"a": 1, "b": 1}
REFUSALS = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "CHUNK_DAMAGED": grpc.StatusCode.INVALID_ARGUMENT,
    "RUN_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "OVERLOADED": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
HARMLESS = {pb.VERDICT_STALE, pb.VERDICT_FENCED, pb.VERDICT_DUPLICATE}
ENTERED = {pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS}

ROOM = 1 << 16
"""The budget: three fp32 pushes of the larger fragment."""

PATIENCE_S, MOMENT_S = 20.0, 0.02
"""For an answer that must come; for one that may."""

CLOSING_SEQ = 1 << 40


@dataclass(slots=True)
class Watch:
    """Looks at the budget whenever a chunk comes in, and remembers what must not be."""

    budget: Budget
    rooms: list[int] = field(default_factory=list[int])
    """Sizes of the rooms that are held."""
    looks: int = 0
    at_work: int = 0
    """Pushes that the service has not ended yet."""
    wrong: list[str] = field(default_factory=list[str])

    def moved(self, size: int) -> None:
        if size > 0:
            self.rooms.append(size)
        elif size < 0:
            self.rooms.remove(-size)
        used = sum(self.rooms)
        if used != self.budget.used or (used > self.budget.limit and len(self.rooms) > 1):
            self.wrong.append(f"{self.rooms} of {self.budget.limit}, {self.budget.used} in use")

    def chunk(self, staging: Staging) -> None:
        self.looks += 1
        held = sum(
            sum(slab.size for slab in shard.kept)
            for staged in staging._staged.values()
            for shard in (*staged.coming.values(), *staged.shards.values())
        )
        if held > self.budget.used:
            self.wrong.append(f"{held} bytes are held where {self.budget.used} are in use")


@contextlib.contextmanager
def watched(budget: Budget) -> Iterator[Watch]:
    """Watch a budget, and the stagings that share it, to the end of the block."""
    watch = Watch(budget)
    hold: Callable[[Budget, Reservation, int], None] = Budget._hold
    note, push = Staging.note, SyncServicer.Push

    def held(self: Budget, one: Reservation, size: int) -> None:
        hold(self, one, size)
        if self is budget:
            watch.moved(size)

    def noted(self: Staging, staged: Staged, shard: Shard, now_s: float) -> None:
        note(self, staged, shard, now_s)
        watch.chunk(self)

    async def pushed(self: SyncServicer, *call: Any) -> pb.PushResponse:
        watch.at_work += 1
        try:
            return await push(self, *call)
        finally:
            watch.at_work -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyncServicer, "Push", pushed)
        patch.setattr(Budget, "_hold", held)
        patch.setattr(Staging, "note", noted)
        yield watch


class Arena:
    """A service with a run of two replicas; a new one after each push that it has not refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = contextlib.AsyncExitStack()
        self.examples, self.entered, self.refused, self.looks = 0, 0, 0, 0

    async def start(self) -> None:
        """Serve a copy of the run at ``REVISION``."""
        stack, stored = self._lives, self._folder / "stored"
        if not stored.exists():
            await self._store(stored)
        folder = self._folder / f"{self.examples:06d}"
        shutil.copytree(stored, folder)
        stack.callback(shutil.rmtree, folder)
        self._s = s = await stack.enter_async_context(service(folder, RULES, ROOM))
        self._watch = stack.enter_context(watched(s.shared.budget))
        self._channel = await stack.enter_async_context(grpc.aio.insecure_channel(s.address))
        self._push = self._channel.stream_unary(PUSH)
        self._stub: Any = sync_pb2_grpc.SyncServiceStub(self._channel)
        await s.members(MEMBERS)

    async def _store(self, folder: Path) -> None:
        """Bring a run to ``REVISION``, with the parameters that were offered: a round of zeros."""
        async with service(folder, RULES, ROOM) as s:
            await s.members(MEMBERS)
            await s.open(LAYOUT, "b")
            for i, start in enumerate(START):
                boxes = [box.to_proto() for box in LAYOUT.fragments[i].boxes]
                await s.offer(start, "b", fragment=i, boxes=boxes)
                for name in MEMBERS:
                    none = np.zeros_like(start)
                    await s.push(none, name, fragment=i, boxes=boxes, base_revision=0)
                await s.pull(fragment=i, revision=REVISION)

    async def stop(self) -> None:
        await self._lives.aclose()

    async def meets(self, streams: Sequence[Stream]) -> None:
        """Send an example, and check all that must be true after it; the next begins afresh."""
        self.examples += 1
        spent = True
        try:
            spent = await self._checked(streams)
        finally:
            if spent:
                await self.stop()
                await self.start()

    async def _checked(self, streams: Sequence[Stream]) -> bool:
        """Whether the run remembers anything of it."""
        expected = counted(streams)
        whole = is_whole(streams)
        answers = await self._sent(streams, whole=bool(expected) or whole)
        told = [
            (stream, pb.PushResponse.FromString(answer))
            for stream, answer in zip(streams, answers, strict=True)
            if isinstance(answer, bytes)
        ]
        verdicts = [verdict for _, verdict in told]
        await self._at_rest()
        arrived = [list(f.arrived) for f in (await self._s.status()).fragments]
        if expected is not None:
            named = [[c.replica for c in expected if c.fragment == i] for i in range(len(START))]
            assert arrived == named, f"{arrived} entered where {named} was to; {verdicts}"
            # What is known of a round before is a duplicate of that.
            entered = [v for v in verdicts if v.judged in ENTERED and v.result_revision > REVISION]
            assert bool(entered) == bool(expected), verdicts
        assert all(v.verdict in ENTERED | HARMLESS for v in verdicts), verdicts
        assert all(may_be_judged(stream) for stream, _ in told), verdicts
        if whole and not expected:
            assert {v.judged for v in verdicts} == {pb.VERDICT_STALE}, verdicts
        stale = [v.result_revision for v in verdicts if v.verdict == pb.VERDICT_STALE]
        assert all(REVISION <= result <= REVISION + 1 for result in stale), verdicts
        for i, start in enumerate(START):
            head, values = await self._s.pull(fragment=i, newest=True)
            # Two strangers' pushes made a round.
            both = head.revision == REVISION + 1 and expected is None
            assert both or (head.revision, values.tobytes()) == (REVISION, start.tobytes())
        self.entered += any(arrived)
        for i, replicas in enumerate(arrived):
            if replicas:
                await self._closes(i, replicas, expected)
        staging = (await self._s.residence.run(RUN)).staging
        # A push that is late may have been judged though its calls had ended by then.
        remembers = staging is not None and bool(staging._answered)
        return bool(verdicts) or any(arrived) or remembers

    async def _sent(
        self, streams: Sequence[Stream], whole: bool
    ) -> list[bytes | grpc.aio.AioRpcError | None]:
        """The streams' answers: bytes or a refusal, or None of a call that we have ended."""
        calls = [asyncio.create_task(self._send(stream)) for stream in streams]
        due = [c for c, s in zip(calls, streams, strict=True) if whole or must_be_answered(s)]
        if due:
            _, late = await asyncio.wait(due, timeout=PATIENCE_S)
            assert not late, "a push that must be answered at once was not"
        _, open_still = await asyncio.wait(calls, timeout=MOMENT_S)
        for call in open_still:
            call.cancel()
        if open_still:
            await asyncio.wait(open_still)
        answers = [None if call.cancelled() else call.result() for call in calls]
        for answer in answers:
            if isinstance(answer, grpc.aio.AioRpcError):
                self.refused += 1
                assert REFUSALS.get(code_of(answer)) is answer.code(), f"{answer}\n{self._told()}"
        return answers

    def _told(self) -> str:
        """What the service's log would say of its faults."""
        told = [traceback.format_exception(fault) for fault in self._s.faults]
        return "".join(itertools.chain.from_iterable(told))

    async def _send(self, stream: Stream) -> bytes | grpc.aio.AioRpcError | None:
        over = asyncio.Event()

        async def messages(begun: asyncio.Future[Any]) -> AsyncIterator[bytes]:
            for message in stream.messages:
                yield message
            if stream.ending == "still":
                await over.wait()
            if stream.ending == "cut":
                (await begun).cancel()

        for _ in range(BROKEN_MAX):
            begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            call = self._push(messages(begun), timeout=2 * PATIENCE_S)
            begun.set_result(call)
            try:
                return await call
            except grpc.aio.AioRpcError as error:
                if error.details() != BROKEN:
                    return error
            except asyncio.CancelledError:
                if stream.ending != "cut":
                    raise
                return None
            finally:
                over.set()
        raise AssertionError(f"the client said {BROKEN_MAX} times: {BROKEN}")

    async def _at_rest(self) -> None:
        """Nothing is staged, nothing was ever held beyond the budget, and nothing has failed.

        A call that we have ended may still be on its way: it comes before what is asked after it,
        on the same line. A rank that is in keeps its push's room until the others come, or its
        replica's lease ends.
        """
        await self._stub.GetRunStatus(pb.GetRunStatusRequest(run=RUN), timeout=PATIENCE_S)
        if self._s.shared.budget.used:
            await self._s.members({})
            await self._s.members(MEMBERS)
        async with asyncio.timeout(PATIENCE_S):
            while self._watch.at_work or self._s.shared.budget.used:
                await asyncio.sleep(0.001)
        self.looks += self._watch.looks
        self._watch.looks = 0
        assert not self._watch.wrong, self._watch.wrong
        assert not self._s.faults, self._told()

    async def _closes(
        self, fragment: int, arrived: list[str], expected: list[Counted] | None
    ) -> None:
        """Let the round close with zeros of who is missing: what it made is what was sent."""
        s, start = self._s, START[fragment]
        boxes = [box.to_proto() for box in LAYOUT.fragments[fragment].boxes]
        missing = [name for name in ("a", "b") if name not in arrived]
        for name in missing:
            answer = await s.push(
                np.zeros_like(start), name, fragment=fragment, boxes=boxes, base_revision=REVISION,
                seq=CLOSING_SEQ,
            )  # fmt: skip
            assert answer.verdict == pb.VERDICT_ACCEPTED, answer
        _, values = await s.pull(fragment=fragment, revision=REVISION + 1)
        if expected is not None:
            counts = [c for c in expected if c.fragment == fragment and not c.is_anomalous]
            total = sum((c.values.astype(np.float64) for c in counts), np.zeros(start.size))
            wanted = start - total / (len(counts) + len(missing))
            np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)


@contextlib.contextmanager
def arena(folder: Path) -> Iterator[tuple[asyncio.Runner, Arena]]:
    """An arena for many examples, and the loop that it lives in."""
    with at_work(Arena(folder)) as both:
        yield both
