"""gRPC <-> host: reads requests, hands them on, writes answers. Decides nothing.

``translated`` is the only place where errors meet gRPC statuses. Whatever is not a SynclineError
is a fault of ours: the call ends INTERNAL and the process is asked to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

import grpc

from syncline_proto.codec import crc32c
from syncline_proto.errors import EpochChanged, InvalidRequest, RunUnknown, SynclineError
from syncline_proto.layout import Box, boxes_from_proto, layout_from_proto, runs
from syncline_proto.settings import valid_name
from syncline_proto.status import CODE_TRAILER, NEWEST_TRAILER, status_of
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync.core.record import Judgement
from syncline_sync.host import Host, RunHost, Shared
from syncline_sync.published import NewestNamed, Published
from syncline_sync.report import pushed
from syncline_sync.runner import Runner

OpenContext: TypeAlias = grpc.aio.ServicerContext[pb.OpenRunRequest, pb.OpenRunResponse]
PushContext: TypeAlias = grpc.aio.ServicerContext[pb.PushRequest, pb.PushResponse]
PullContext: TypeAlias = grpc.aio.ServicerContext[pb.PullRequest, pb.PullResponse]
StatusContext: TypeAlias = grpc.aio.ServicerContext[pb.GetRunStatusRequest, pb.GetRunStatusResponse]

_RESIDUAL = {
    pb.VERDICT_ACCEPTED: pb.RESIDUAL_ACTION_KEEP,
    pb.VERDICT_STALE: pb.RESIDUAL_ACTION_RESTORE,
    pb.VERDICT_ANOMALOUS: pb.RESIDUAL_ACTION_CLEAR,
    pb.VERDICT_FENCED: pb.RESIDUAL_ACTION_KEEP,
}


class SyncServicer(sync_pb2_grpc.SyncServiceServicer):
    """The calls of ``syncline.sync.v1.SyncService``."""

    def __init__(self, host: Host, shared: Shared) -> None:
        self._host, self._shared = host, shared

    async def OpenRun(self, request: pb.OpenRunRequest, context: OpenContext) -> pb.OpenRunResponse:
        try:
            return await self._open(request)
        except BaseException as error:
            await self._abort(context, error)
            raise

    async def Push(
        self, request_iterator: AsyncIterator[pb.PushRequest], context: PushContext
    ) -> pb.PushResponse:
        try:
            return await self._push(request_iterator)
        except BaseException as error:
            await self._abort(context, error)
            raise

    async def Pull(
        self, request: pb.PullRequest, context: PullContext
    ) -> AsyncIterator[pb.PullResponse]:
        try:
            async for part in self._pull(request):
                yield part
        except BaseException as error:
            await self._abort(context, error)
            raise

    async def GetRunStatus(
        self, request: pb.GetRunStatusRequest, context: StatusContext
    ) -> pb.GetRunStatusResponse:
        try:
            run = self._host.run(_name("run", request.run))
            return pb.GetRunStatusResponse(
                epoch=_epoch(run),
                fingerprint=run.fingerprint,
                instance=self._host.instance,
                fragments=run.states(),
            )
        except BaseException as error:
            await self._abort(context, error)
            raise

    async def _open(self, request: pb.OpenRunRequest) -> pb.OpenRunResponse:
        observer = not request.replica
        if observer:
            run = self._host.run(_name("run", request.run))
            if run.layout is None:
                raise RunUnknown(f"Run {run.name} has no layout yet: no replica has opened it.")
        else:
            layout = layout_from_proto(request.layout)
            replica = _name("replica", request.replica)
            run = await self._host.member(_name("run", request.run), replica, request.incarnation)
            run.open(layout)
        return pb.OpenRunResponse(
            epoch=_epoch(run),
            fingerprint=run.fingerprint,
            fragments=run.states(),
            instance=self._host.instance,
            layout=run.layout.to_proto() if observer and run.layout else None,
        )

    async def _push(self, parts: AsyncIterator[pb.PushRequest]) -> pb.PushResponse:
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidRequest("push: the first message must be the header.")
        header = first.header
        run = self._host.run(_name("run", header.run))
        runner, staging = _runner(run, header.fragment), run.staging
        assert staging is not None
        early = runner.core.fenced(header.replica, header.incarnation)
        early = early or staging.answered(header)
        early = early or runner.core.known(header.replica, header.incarnation, header.seq)
        if early is not None:
            return _response(early, runner)
        staged, shard = await staging.open(header)
        loop = asyncio.get_running_loop()
        self._shared.metrics.staged.set(self._shared.budget.used)
        async for part in parts:
            if part.WhichOneof("part") != "chunk":
                raise InvalidRequest("push: after the header only chunks may follow.")
            await loop.run_in_executor(self._shared.pool, shard.take, part.chunk)
            run.metrics.moved("up", len(part.chunk.data))
        if not shard.whole:
            raise InvalidRequest(
                f"push: the stream ended after {shard.received} of {shard.elements} elements."
            )
        if staging.add(staged, shard):
            runner.submit(staged)
        judgement = await asyncio.shield(staged.answer)
        self._shared.metrics.staged.set(self._shared.budget.used)
        return _response(judgement, runner)

    async def _pull(self, request: pb.PullRequest) -> AsyncIterator[pb.PullResponse]:
        run = self._host.run(_name("run", request.run))
        runner = _runner(run, request.fragment)
        if request.epoch and request.epoch != _epoch(run):
            raise EpochChanged(
                f"Run {run.name} is in epoch {_epoch(run)}, not {request.epoch}: open it again."
            )
        assert run.layout is not None
        boxes: Sequence[Box] = boxes_from_proto(request.boxes)
        where = runs(
            run.layout, request.fragment, boxes or run.layout.fragments[request.fragment].boxes
        )
        value = await _wanted(runner, request)
        yield pb.PullResponse(header=_pull_header(value, int(where[:, 1].sum()), self._host))
        if request.header_only:
            return
        for data in value.chunks(where):
            run.metrics.moved("down", len(data))
            yield pb.PullResponse(chunk=pb.Chunk(data=data, crc32c=crc32c(data)))

    async def _abort(self, context: _Abortable, error: BaseException) -> None:
        """End the call with the error's status; a fault of ours also stops the process."""
        if isinstance(error, SynclineError):
            trailer = [(CODE_TRAILER, error.code)]
            if isinstance(error, NewestNamed):
                trailer.append((NEWEST_TRAILER, str(error.newest)))
            context.set_trailing_metadata(tuple(trailer))
            await context.abort(status_of(error), error.message)
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            self._shared.fail(error)
            await context.abort(grpc.StatusCode.INTERNAL, "The sync service failed; see its log.")


_Abortable: TypeAlias = OpenContext | PushContext | PullContext | StatusContext


def _name(field: str, value: str) -> str:
    if not valid_name(value):
        raise InvalidRequest(f"{field}: {value[:80]!r} is not a name (lower case, digits, . _ -).")
    return value


def _runner(run: RunHost, fragment: int) -> Runner:
    if not run.runners:
        raise InvalidRequest(f"run: {run.name} has no layout yet; call OpenRun first.")
    if fragment >= len(run.runners):
        raise InvalidRequest(f"fragment: {fragment} where the run has {len(run.runners)}.")
    return run.runners[fragment]


def _epoch(run: RunHost) -> int:
    return run.runners[0].core.saved.epoch if run.runners else 1


def _response(judgement: Judgement, runner: Runner) -> pb.PushResponse:
    judged = judgement.judged or judgement.verdict
    return pb.PushResponse(
        verdict=judgement.verdict,
        reason=judgement.reason,
        epoch=runner.core.saved.epoch,
        result_revision=judgement.result,
        residual=_RESIDUAL[judged],
        judged=judged,
        non_finite=judgement.non_finite,
    )


async def _wanted(runner: Runner, request: pb.PullRequest) -> Published:
    wanted = request.WhichOneof("wanted")
    if wanted == "revision":
        return await runner.revisions.get(request.revision)
    if wanted == "newest":
        return await runner.revisions.get(None)
    if wanted == "gradient_step" and runner.core.synchronous:
        return await runner.gradients.get(request.gradient_step)
    if wanted == "gradient_step":
        newest = runner.revisions.newest or 0
        raise NewestNamed("gradient_step: the synchronous phase is over; pull revisions.", newest)
    raise InvalidRequest("wanted: name a revision, the newest, or a gradient_step.")


def _pull_header(value: Published, elements: int, host: Host) -> pb.PullHeader:
    return pb.PullHeader(
        epoch=value.saved.epoch,
        revision=value.saved.revision,
        gradient_step=value.saved.gradient_step,
        codec=value.codec,
        elements=elements,
        committed_tokens=value.saved.committed_tokens,
        contributions=pushed(value.saved),
        instance=host.instance,
    )
