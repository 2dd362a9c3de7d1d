"""The ranks of one push: each comes when it comes, with a call of its own.

A rank that was told STALE goes on. So one whose call broke meanwhile comes again alone, and must
hear the same: whether the service was killed, or has lost the round that the others were told of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from numpy.random import Generator

from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import code_of

APART_S = 0.02
"""Between two ranks of a push, on average."""

GONE = {pb.VERDICT_STALE, pb.VERDICT_FENCED}
"""What all ranks of a push hear if one hears that it is STALE."""

Push = Callable[[int], Awaitable[pb.PushResponse]]
"""Makes the call of one rank."""


def judged(answer: pb.PushResponse) -> pb.Verdict.ValueType:
    """How a push was judged in the end."""
    is_duplicate = answer.verdict == pb.VERDICT_DUPLICATE
    return answer.judged if is_duplicate else answer.verdict


async def pushed_by(
    count: int,
    push: Push,
    again: Callable[[grpc.aio.AioRpcError], Awaitable[None]],
    random: Generator,
) -> tuple[pb.PushResponse, int]:
    """Push with so many ranks; an answer, and how many ranks came again alone.

    ``again`` waits before a call is made again, or raises.

    Raises:
        AioRpcError: a call has failed, and nobody was told that the push is STALE.
        AssertionError: they were not told alike, or one waits for another that has gone on.
    """
    apart = [0.0, *random.exponential(APART_S, count - 1)]

    async def come(rank: int) -> pb.PushResponse:
        await asyncio.sleep(apart[rank])
        return await push(rank)

    answers = await asyncio.gather(*map(come, range(count)), return_exceptions=True)
    told = [one for one in answers if isinstance(one, pb.PushResponse)]
    is_over = any(judged(one) == pb.VERDICT_STALE for one in told)
    for rank, error in enumerate(answers):
        if isinstance(error, BaseException):
            if not (is_over and isinstance(error, grpc.aio.AioRpcError)):
                raise error
            told.append(await _alone(lambda rank=rank: push(rank), error, again))
    assert not is_over or {*map(judged, told)} <= GONE, f"not told alike: {told}"
    return told[0], sum(isinstance(one, BaseException) for one in answers)


async def _alone(
    push: Callable[[], Awaitable[pb.PushResponse]],
    error: grpc.aio.AioRpcError,
    again: Callable[[grpc.aio.AioRpcError], Awaitable[None]],
) -> pb.PushResponse:
    """What a rank hears that comes again, however often; nobody else will come."""
    while True:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise AssertionError("a rank waits for another that has gone on") from error
        if code_of(error) == "LEASE_LOST":
            return pb.PushResponse(verdict=pb.VERDICT_FENCED)
        await again(error)
        try:
            return await push()
        except grpc.aio.AioRpcError as another:
            error = another
