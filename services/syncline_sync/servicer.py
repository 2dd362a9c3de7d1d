"""gRPC <-> host and residence: reads requests, hands them on, writes answers. Decides nothing.

Its errors become statuses in statuses.py; a pull's are told from here, in its turn among those that
send, since its reader may be slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeAlias, TypeVar, cast

import grpc

from syncline_proto.errors import (
    EpochChanged,
    InvalidRequest,
    RunUnknown,
    SynclineError,
    bare,
)
from syncline_proto.layout import layout_from_proto
from syncline_proto.names import NAME_WORDS, valid_name
from syncline_proto.owners import owners
from syncline_proto.settings import TimeoutSettings
from syncline_proto.spans import NOWHERE
from syncline_proto.status import PUBLISHED_TRAILER
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync.budget import Budget
from syncline_sync.core.record import Judgement
from syncline_sync.core.refusals import check_alive
from syncline_sync.durability import StoreRefuses
from syncline_sync.host import Host
from syncline_sync.places import Places
from syncline_sync.pool import compute_to_the_end
from syncline_sync.published import Whose
from syncline_sync.receiving import Part, PushContext, Receiving, begun_anew
from syncline_sync.residence import Residence
from syncline_sync.run import RunHost
from syncline_sync.runner import Runner
from syncline_sync.senders import ENDING_MAX, SENDERS_MAX, Senders
from syncline_sync.sending import Sending, Write
from syncline_sync.shard import KIND, shard_of
from syncline_sync.shared import Shared
from syncline_sync.shelf import Loan
from syncline_sync.staging import Staging
from syncline_sync.statuses import tell
from syncline_sync.wanted import phase_of, wanted

OpenContext: TypeAlias = grpc.aio.ServicerContext[pb.OpenRunRequest, pb.OpenRunResponse]
PullContext: TypeAlias = grpc.aio.ServicerContext[pb.PullRequest, pb.PullResponse]
StatusContext: TypeAlias = grpc.aio.ServicerContext[pb.GetRunStatusRequest, pb.GetRunStatusResponse]

T = TypeVar("T")

HEADER_WAIT_S = max(TimeoutSettings(profile=profile).call_s for profile in ("lan", "wan"))
"""A push may take this long to say whose it is; then its run's own ``call_s`` holds."""

FEW_BOXES = 1024
"""So many are found within a few hundredths of a second."""


class SyncServicer(sync_pb2_grpc.SyncServiceServicer):
    """The calls of ``syncline.sync.v1.SyncService``."""

    def __init__(self, host: Host, residence: Residence, shared: Shared) -> None:
        self._host, self._residence, self._shared = host, residence, shared
        self._senders = Senders(SENDERS_MAX, ENDING_MAX)
        self._lookups = Budget(1)

    async def OpenRun(self, request: pb.OpenRunRequest, context: OpenContext) -> pb.OpenRunResponse:
        observer = not request.replica
        if observer:
            run = await self._residence.run(_name("run", request.run))
        else:
            replica, name = _name("replica", request.replica), _name("run", request.run)
            run = await self._host.member(name, replica, request.incarnation)
            layout = await self._shared.compute(layout_from_proto, request.layout)
            await run.open(layout, replica)
        if run.layout is None:
            raise RunUnknown(f"Run {run.name} has nothing yet: no replica has joined it.")
        return pb.OpenRunResponse(
            epoch=run.epoch,
            fingerprint=run.fingerprint,
            fragments=run.states((request.replica, request.incarnation)),
            instance=self._host.instance,
            layout=await self._shared.compute(run.layout.to_proto) if observer else None,
        )

    async def Push(
        self, request_iterator: AsyncIterator[pb.PushRequest], context: PushContext
    ) -> pb.PushResponse:
        header = await _header(request_iterator)
        _name("replica", header.replica)
        run = await self._residence.run(_name("run", header.run))
        runner, staging = self._runner(run, header.fragment), run.staging
        assert staging is not None
        assert run.places is not None
        find = partial(shard_of, run.places, header, self._shared.slabs)
        try:
            shard = await self._located(run.name, run.places, header, find)
        except InvalidRequest as error:
            # Only a member's push that is to come in is remembered: others may send any number.
            if _early(run, runner, header) is None:
                staging.refuse(header, error)
            raise
        del header, find  # many boxes may be in it
        header = shard.header
        early = _early(run, runner, header)
        if early is None:
            early = await _answer_late(run, runner, staging, header)
        if early is not None:
            run.metrics.judged(early.verdict)
            return _response(early, runner)
        staged = staging.join(shard)
        receiving = Receiving(self._shared, run, staging, staged, shard, runner.submit)
        work = asyncio.create_task(receiving.receive(request_iterator, context))
        staged.received_by(shard, work)
        try:
            # The answer may come first: to a replica that loses its lease while it sends.
            await asyncio.wait({work, staged.answer}, return_when=asyncio.FIRST_COMPLETED)
            if not staged.answer.done():
                if work.cancelled():
                    raise begun_anew()
                work.result()
            return _response(await asyncio.shield(staged.answer), runner)
        finally:
            work.cancel()
            staging.leave(staged, shard)
            try:
                await asyncio.gather(work, return_exceptions=True)
            finally:
                del work  # it has its error, that has this frame, and a call that is cut keeps both

    async def Pull(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: pb.PullRequest, context: PullContext
    ) -> None:
        # Written, not yielded: a generator would keep its last chunk while it waits to send.
        try:
            ago_s = await self._pull(request, cast(Write, context.write))
            if ago_s is not None:
                context.set_trailing_metadata(((PUBLISHED_TRAILER, f"{ago_s:.6f}"),))
            return
        except StoreRefuses:
            raise  # for the process, too: it ends
        except SynclineError as error:
            told = bare(error)
        # Its status waits for the slow reader, too; what the error's frames held does not.
        with self._senders.ending(request.run):
            await tell(context, told)

    async def GetRunStatus(
        self, request: pb.GetRunStatusRequest, context: StatusContext
    ) -> pb.GetRunStatusResponse:
        run = await self._residence.run(_name("run", request.run))
        return pb.GetRunStatusResponse(
            epoch=run.epoch,
            fingerprint=run.fingerprint,
            instance=self._host.instance,
            fragments=run.states(),
        )

    async def _pull(self, request: pb.PullRequest, write: Write) -> float | None:
        """Answer with ``write``.

        Returns:
            How long ago (s) the revision was published, where the header could not say: it was
            still to be. Else None.
        """
        run = await self._residence.run(_name("run", request.run))
        runner = self._runner(run, request.fragment)
        if request.replica:
            check_alive(run.members, _name("replica", request.replica), request.incarnation)
        if request.epoch and request.epoch != run.epoch:
            raise EpochChanged(
                f"Run {run.name} is in epoch {run.epoch}, not {request.epoch}: open it again."
            )
        assert run.places is not None
        where = run.places.whole(request.fragment)
        if request.boxes:
            find = partial(run.places.of, request.fragment, request.boxes)
            where = await self._located(run.name, run.places, request, find)
        shelf, number = wanted(runner, request)
        value = await shelf.get(number, phase_of(runner, request), time.monotonic())
        whose = Whose(self._host.instance, run.name, request.fragment)
        difference = value.difference_to(request.held, whose, where) if request.held else None
        difference_from = request.held if difference else ""
        header = value.header(where.elements, whose, time.monotonic(), difference_from)
        head = pb.PullResponse(header=header).SerializeToString()
        was_announced = value.is_announced
        named = value.saved.revision if number is None else number
        # What is lent stays as it is, so from before the header says what comes.
        with Loan(shelf, named, value, difference) as loan:
            sending = Sending(shared=self._shared, run=run, loan=loan, write=write)
            await sending.send(head, NOWHERE if request.header_only else where, self._senders)
        return value.ago_s(time.monotonic()) if was_announced else None

    def _runner(self, run: RunHost, fragment: int) -> Runner:
        """The runner of one of the run's fragments.

        Raises:
            InvalidRequest: there is no such fragment, or another service has it.
        """
        if run.layout is None:
            raise InvalidRequest(
                f"run: {run.name} has no layout here; call OpenRun first. If it had one, this sync "
                "service is on another folder than it was: begin it on that one again (--data)."
            )
        fragments, seat = run.layout.fragments, self._shared.seat
        if fragment >= len(fragments):
            raise InvalidRequest(
                f"fragment: {fragment} where the run has {len(fragments)}, counted from 0; OpenRun "
                "says what a service owns."
            )
        if fragment not in run.runners:
            owner = owners([one.numel for one in fragments], seat.shards)[fragment]
            raise InvalidRequest(
                f"fragment: {fragment} is owned by sync service {owner} of {seat.shards}, and this "
                f"is {seat}; OpenRun says what a service owns."
            )
        return run.runners[fragment]

    async def _located(
        self, run: str, places: Places, asked: pb.PushHeader | pb.PullRequest, find: Callable[[], T]
    ) -> T:
        """Find where boxes lie; many only for one call at a time, so that the pool is free."""
        if places.knows(asked.fragment, asked.boxes):
            return find()
        if len(asked.boxes) <= FEW_BOXES:
            return await self._shared.compute(find)
        async with self._lookups.reserved(run, 1):
            # A call that goes does not take the thread with it, nor let the next one begin.
            return await compute_to_the_end(self._shared.pool, find)


async def _header(parts: AsyncIterator[Part]) -> pb.PushHeader:
    """The first message of a push; nobody waits long for a call that does not say whose it is."""
    try:
        async with asyncio.timeout(HEADER_WAIT_S):
            first = await anext(parts, None)
    except TimeoutError:
        raise InvalidRequest(f"push: no header came within {HEADER_WAIT_S:g} s.") from None
    if not isinstance(first, pb.PushRequest) or first.WhichOneof("part") != "header":
        raise InvalidRequest("push: the first message must be the header.")
    return first.header


def _name(field: str, value: str) -> str:
    if not valid_name(value):
        raise InvalidRequest(f"{field}: {value[:80]!r} is not a name ({NAME_WORDS}).")
    return value


def _early(run: RunHost, runner: Runner, header: pb.PushHeader) -> Judgement | None:
    """The answer to a push that need not come in; None if it is to."""
    assert run.staging is not None
    return runner.core.early(
        run.members,
        header.replica,
        header.incarnation,
        header.seq,
        KIND.get(header.kind),
        header.epoch,
        run.staging.answered(header),
    )


async def _answer_late(
    run: RunHost, runner: Runner, staging: Staging, header: pb.PushHeader
) -> Judgement | None:
    """The answer to a member's push whose round has closed; None if it is to come in.

    Raises:
        InvalidRequest: it contradicts where the run stands; its other ranks will hear of that.
    """
    try:
        late = await runner.answer_late(header)
    except InvalidRequest as error:
        staging.refuse(header, error)
        raise
    # It may have lost its lease while the round was published.
    fenced = runner.core.fenced(run.members, header.replica, header.incarnation)
    if fenced is not None or late is None:
        return fenced
    return late if staging.answer(header, late) else None


def _response(judgement: Judgement, runner: Runner) -> pb.PushResponse:
    return pb.PushResponse(
        verdict=judgement.verdict,
        reason=judgement.reason,
        epoch=runner.core.saved.epoch,
        result_revision=judgement.result,
        residual=judgement.residual,
        judged=judgement.first,
        non_finite=judgement.non_finite,
        counts_in=judgement.counts_in,
    )
