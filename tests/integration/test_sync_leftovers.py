"""A call that ends without an answer leaves nothing for the garbage collector to find.

It comes when many objects have been made, and knows nothing of how large they are: a few rings with
a message of megabytes each would grow for minutes.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.codec import crc32c
from syncline_proto.layout import Box
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import RUN, Service, code_of, flat_layout, service

LAYOUT = flat_layout(1 << 20, 2)
RULES = RunSettings.model_validate({"strategy": "local-sgd", "codec": {"up": "fp32"}})
LARGE = 1 << 20
BOXES = [box.to_proto() for box in LAYOUT.fragments[0].boxes]
CHUNK = pb.PushRequest(chunk=pb.Chunk(data=bytes(LARGE), crc32c=crc32c(bytes(LARGE))))
PART = Box(0, (0,), (LARGE // 4,)).to_proto()
HEAVY = (294_912, 294_912)
"""Bytes of two chunks in int4 that make a fragment; the pool looks at them."""
PUSH, OPEN = (f"/syncline.sync.v1.SyncService/{method}" for method in ("Push", "OpenRun"))

Call = Callable[[Service, grpc.aio.Channel], Awaitable[Any]]


def header(**given: Any) -> pb.PushRequest:
    usual: dict[str, Any] = {
        "run": RUN, "epoch": 1, "replica": "a", "incarnation": 1, "seq": 1, "ranks": 1,
        "kind": pb.PUSH_KIND_PARAMETERS, "codec": pb.CODEC_FP32, "boxes": BOXES,
    }  # fmt: skip
    return pb.PushRequest(header=pb.PushHeader(**usual | given))


def pushing(*messages: bytes | pb.PushRequest, seconds: float = 20, stays: bool = False) -> Call:
    """Send these; with few seconds, say no more then and go away in the midst of the push.

    ``stays``: say no more then, and wait for what comes of it.
    """

    async def parts() -> AsyncIterator[bytes]:
        for message in messages:
            yield message if isinstance(message, bytes) else message.SerializeToString()
        if stays or seconds < 1:
            await asyncio.Event().wait()

    return lambda _, channel: channel.stream_unary(PUSH)(parts(), timeout=seconds)


def asking(**request: Any) -> Call:
    async def pull(s: Service, _: grpc.aio.Channel) -> None:
        [part async for part in s.stub.Pull(pb.PullRequest(**request), timeout=20)]

    return pull


DAMAGED = (
    header(
        kind=pb.PUSH_KIND_PSEUDO_GRADIENT,
        base_revision=0,
        inner_steps=1,
        codec=pb.CODEC_INT4,
    ),
    *(pb.PushRequest(chunk=pb.Chunk(data=bytes(size), crc32c=1)) for size in HEAVY),
)
"""In the pool."""

CALLS: dict[str, tuple[Call, str]] = {
    "no message": (pushing(b"\xff" * LARGE), "INVALID_REQUEST"),
    "boxes without end": (pushing(header(boxes=[pb.Box()] * 100_001)), "INVALID_REQUEST"),
    "a name": (pushing(header(replica="A" * LARGE)), "INVALID_REQUEST"),
    "a run": (pushing(header(run="unknown"), CHUNK), "RUN_UNKNOWN"),
    "a chunk": (pushing(header(), b"\xff" * LARGE), "INVALID_REQUEST"),
    "a checksum": (
        pushing(header(), pb.PushRequest(chunk=pb.Chunk(data=bytes(LARGE)))),
        "CHUNK_DAMAGED",
    ),
    "a checksum in the pool": (pushing(*DAMAGED), "CHUNK_DAMAGED"),
    "one, and no more is said": (pushing(*DAMAGED, stays=True), "CHUNK_DAMAGED"),
    "a part": (pushing(header(boxes=[PART]), CHUNK), "INVALID_REQUEST"),
    "a rank that does not come": (
        pushing(header(boxes=[PART], ranks=2), CHUNK),
        "UNREACHABLE",
    ),
    "gone": (pushing(header(), CHUNK, seconds=0.5), "DEADLINE_EXCEEDED"),
    "a request": (
        lambda _, channel: channel.unary_unary(OPEN)(b"\xff" * LARGE, timeout=20),
        "INVALID_REQUEST",
    ),
    "a revision": (asking(run=RUN, fragment=0, epoch=9), "EPOCH_CHANGED"),
}


def code_or_status(error: grpc.aio.AioRpcError) -> str:
    """Our code, or gRPC's word where nobody of ours said any.

    A caller whose time is over while it writes hears INTERNAL from its own end.
    """
    own = (error.details() or "").startswith("Internal error from Core")
    return code_of(error) or ("DEADLINE_EXCEEDED" if own else error.code().name)


async def refused(s: Service, channel: grpc.aio.Channel, call: Call, wanted: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(s, channel)
    assert code_or_status(caught.value) == wanted


async def left_by(call: Call, wanted: str, folder: Path) -> list[Any]:
    """What three such calls leave for the collector; a first one makes what is made once."""
    async with service(folder, RULES) as s, grpc.aio.insecure_channel(s.address) as channel:
        await s.members({"a": 1})
        await s.open(LAYOUT, "a")
        await refused(s, channel, call, wanted)
        gc.collect()
        with saved() as left:
            for _ in range(3):
                await refused(s, channel, call, wanted)
            async with asyncio.timeout(30):  # a caller that goes is seen a moment later
                while s.shared.budget.used:
                    await asyncio.sleep(0.001)
            await s.status()
        return left


@contextmanager
def saved() -> Iterator[list[Any]]:
    """What is left for the collector at the end of the block; it does not come meanwhile."""
    left: list[Any] = []
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def frames_of(left: list[Any]) -> list[str]:
    """The service's own among what is left, by their functions' names."""
    codes = [one.f_code for one in left if isinstance(one, FrameType)]
    return [code.co_qualname for code in codes if "syncline_sync" in code.co_filename]


@pytest.mark.long
@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_is_refused_leaves_no_ring(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither frames of the service nor a call of gRPC's, which has what came of it."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 1.0))
    left = asyncio.run(left_by(*CALLS[what], tmp_path))
    assert not frames_of(left)
    assert not {type(one).__name__ for one in left} & {"RPCState", "_ServicerContext"}


@pytest.mark.long
def test_a_caller_that_goes_at_any_moment_leaves_no_ring(tmp_path: Path) -> None:
    """Before its push has room, while it is told so, and amid its chunk."""

    async def scenario() -> list[Any]:
        async with service(tmp_path, RULES) as s, grpc.aio.insecure_channel(s.address) as channel:
            await s.members({"a": 1})
            await s.open(LAYOUT, "a")
            await refused(s, channel, *CALLS["gone"])
            gc.collect()
            with saved() as left:
                for moment in range(200):
                    call = pushing(header(), CHUNK, seconds=1e-4 * (moment + 1))
                    await refused(s, channel, call, "DEADLINE_EXCEEDED")
                async with asyncio.timeout(30):
                    while s.shared.budget.used:
                        await asyncio.sleep(0.001)
                await s.status()
            return left

    left = asyncio.run(scenario())
    assert not frames_of(left)
    assert not {type(one).__name__ for one in left} & {"RPCState", "_ServicerContext"}


def test_a_run_that_is_damaged_leaves_nothing_of_what_was_read_of_it(tmp_path: Path) -> None:
    """Each file is as large as its fragment."""

    async def scenario() -> list[str]:
        async with service(tmp_path, RULES) as s:
            await s.members({"a": 1})
            await s.open(LAYOUT, "a")
            for fragment in (0, 1):
                await s.offer(np.ones(1 << 20, np.float32), "a", fragment=fragment)
        (last,) = tmp_path.glob("runs/run/00001/*.safetensors")
        whole = bytearray(last.read_bytes())
        whole[-1] ^= 1
        last.write_bytes(whole)
        gc.collect()
        async with service(tmp_path, RULES) as s:
            with saved() as left:
                await s.members({"a": 1})
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await s.status()
            assert code_of(refused.value) == "STORE_DAMAGED"
            return frames_of(left)

    assert not asyncio.run(scenario())
