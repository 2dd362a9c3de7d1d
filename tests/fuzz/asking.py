"""A real service that is asked, in this process: what it must tell, and that it stays as it was.

Every example meets a run at ``REVISION`` with two published values, and one that has no layout.
What ``replies`` lets pass is answered to the bit; all else is refused under a code of ours, or
waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest

import syncline_sync.host
from fuzz.examples import at_work
from fuzz.replies import MEMBERS, WAITS, fingerprint, open_codes, parsed, places, pull_codes
from fuzz.requests import FRESH, HELD, INSTANCE, Request
from fuzz.streams import LAYOUT, REVISION, RUN
from syncline_proto.codec import Follower, UInt16, crc32c, encode
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.published import PULLED_BYTES_MAX
from syncline_testing.service import Service, code_of, service

METHOD = "/syncline.sync.v1.SyncService/"
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "int8"}}
)
REFUSALS = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "RUN_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "LEASE_LOST": grpc.StatusCode.PERMISSION_DENIED,
    "LAYOUT_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "EPOCH_CHANGED": grpc.StatusCode.FAILED_PRECONDITION,
    "REVISION_GONE": grpc.StatusCode.FAILED_PRECONDITION,
}

PATIENCE_S, MOMENT_S = 20.0, 0.05
"""For an answer that must come; for a call that is to wait for what will not come."""

SERVED_ELEMENTS_MAX = 1 << 16
"""Of a fragment that is offered, where a layout has been taken."""


class Asking:
    """A service with both runs; a new one once the run without a layout may have got one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = contextlib.AsyncExitStack()
        self._values: dict[tuple[int, int], UInt16] = {}
        """Of each fragment and revision, in bf16."""
        self.examples, self.answered, self.refused, self.opened, self.followed = 0, 0, 0, 0, 0

    async def start(self) -> None:
        """Serve a run with two published values, and one that nobody has opened.

        The first life makes them, and knows the difference between both; later ones have a copy.
        """
        stack, folder = self._lives, self._folder / f"{self.examples:06d}"
        stored = self._folder / "stored"
        if stored.exists():
            shutil.copytree(stored, folder)
        stack.callback(shutil.rmtree, folder)
        self._service = await stack.enter_async_context(self._life(folder))
        if not stored.exists():
            await self._publishes(self._service)
            shutil.copytree(folder, stored)

    async def _publishes(self, s: Service) -> None:
        """Bring the run to ``REVISION``, and keep what everybody is sent of each revision."""
        random = np.random.default_rng(0)
        await s.open(LAYOUT, "a")
        for i, spec in enumerate(LAYOUT.fragments):
            given: dict[str, Any] = {"fragment": i, "boxes": [box.to_proto() for box in spec.boxes]}
            start, change = random.standard_normal((2, spec.numel)).astype(np.float32)
            await s.offer(start, "a", **given)
            for revision in range(REVISION + 1):
                if revision:
                    await s.push(change / 100, "a", **given, base_revision=revision - 1)
                header, values = await s.pull(fragment=i, revision=revision)
                assert HELD[header.value] == (i, revision)
                self._values[i, revision] = bits(values)

    @contextlib.asynccontextmanager
    async def _life(self, folder: Path) -> AsyncIterator[Service]:
        async with service(folder, RULES) as s:
            s.host.instance = INSTANCE
            members = [Member(replica=name, incarnation=i) for name, i in MEMBERS.items()]
            runs = [
                RunMembership(
                    run=run,
                    state=RunState.RUNNING,
                    settings=RULES,
                    settings_version=1,
                    members=members,
                )
                for run in (RUN, FRESH)
            ]
            await s.follow(Membership(version=1, runs=runs))
            async with grpc.aio.insecure_channel(s.address) as self._channel:
                yield s

    async def stop(self) -> None:
        await self._lives.aclose()

    async def meets(self, request: Request) -> None:
        """Send an example, and check all that must be true after it."""
        self.examples += 1
        spent = True
        try:
            if request.method == "Pull":
                await self._pulls(request)
                spent = False
            else:
                spent = await self._opens(request)
        finally:
            if spent:
                await self.stop()
                await self.start()

    async def _pulls(self, request: Request) -> None:
        asked = parsed(pb.PullRequest(), request.data)
        codes = {"INVALID_REQUEST"} if asked is None else pull_codes(asked)
        parts = await self._told(request, codes)
        if parts is not None and asked is not None:
            self._is_right(asked, [pb.PullResponse.FromString(part) for part in parts])
        await self._unharmed()

    async def _opens(self, request: Request) -> bool:
        """Whether the run that had no layout may have one now."""
        asked = parsed(pb.OpenRunRequest(), request.data)
        codes = {"INVALID_REQUEST"} if asked is None else open_codes(asked)
        parts = await self._told(request, codes)
        is_first = asked is not None and asked.run == FRESH and not codes
        if parts is not None and asked is not None:
            answer = pb.OpenRunResponse.FromString(parts[0])
            layout = asked.layout if asked.replica else LAYOUT.to_proto()
            assert (answer.epoch, answer.instance) == (1, INSTANCE)
            assert answer.fingerprint == fingerprint(layout)
            assert [f.fragment for f in answer.fragments] == [*range(len(layout.fragments))]
            assert answer.layout == (pb.Layout() if asked.replica else layout)
            if is_first:
                await self._serves(asked.layout)
        await self._unharmed()
        if not is_first:
            assert (await self._service.residence.run(FRESH)).layout is None
        return is_first

    async def _told(self, request: Request, codes: set[str]) -> list[bytes] | None:
        """The messages of the answer, if it must come and did; None where it is refused or cut."""
        wait_s = MOMENT_S if codes == {WAITS} else PATIENCE_S
        path = METHOD + request.method
        try:
            if request.method == "Pull":
                call = self._channel.unary_stream(path)(request.data, timeout=wait_s)
                parts: list[bytes] = []
                async for part in call:
                    parts.append(part)
                    if request.is_cut:
                        return None
            else:
                opening = self._channel.unary_unary(path)(request.data, timeout=wait_s)
                if request.is_cut:
                    await asyncio.sleep(0)
                    opening.cancel()
                parts = [await opening]
        except asyncio.CancelledError:
            assert request.is_cut
            return None
        except grpc.aio.AioRpcError as error:
            code = code_of(error)
            late = WAITS in codes and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            is_right = code in codes and REFUSALS[code] is error.code()
            assert late or is_right, f"{error}\n{codes}\n{self._faults()}"
            self.refused += 1
            return None
        assert not codes, f"answered, where one of {codes} was due"
        self.answered += 1
        return parts

    def _is_right(self, asked: pb.PullRequest, parts: list[pb.PullResponse]) -> None:
        """Compare what a pull was sent with the value, element by element."""
        header, chunks = parts[0].header, [part.chunk for part in parts[1:]]
        revision = asked.revision if asked.WhichOneof("wanted") == "revision" else REVISION
        where, value = places(asked), self._values[asked.fragment, revision]
        assert HELD[header.value] == (asked.fragment, revision)
        assert (header.epoch, header.revision, header.elements) == (1, revision, where.size)
        assert all(0 < len(chunk.data) <= PULLED_BYTES_MAX for chunk in chunks)
        assert all(crc32c(chunk.data) == chunk.crc32c for chunk in chunks)
        if header.difference_from:
            assert header.difference_from == asked.held
            assert HELD[asked.held] == (asked.fragment, revision - 1)
        if asked.header_only:
            assert not chunks
            return
        if not header.difference_from:
            data = b"".join(chunk.data for chunk in chunks)
            assert data == value[where].tobytes()
            return
        held = self._values[HELD[asked.held]][where]
        out, filled = np.empty(where.size, np.uint16), 0
        follower = Follower(held, spans_of(where))
        for chunk in chunks:
            filled += follower.follow(chunk.data, out[filled:])
        assert filled == where.size and np.array_equal(out, value[where])
        self.followed += 1

    async def _unharmed(self) -> None:
        """The run stands where it stood, with its layout and its values, and nothing has failed."""
        observer = await self._service.stub.OpenRun(pb.OpenRunRequest(run=RUN), timeout=PATIENCE_S)
        assert observer.layout == LAYOUT.to_proto()
        assert [f.revision for f in observer.fragments] == [REVISION] * len(observer.fragments)
        for i in range(len(LAYOUT.fragments)):
            header, values = await self._service.pull(fragment=i, newest=True)
            assert header.revision == REVISION
            assert np.array_equal(bits(values), self._values[i, REVISION])
        assert not self._service.faults, self._faults()

    async def _serves(self, layout: pb.Layout) -> None:
        """A layout that was taken can be trained, and is there after a restart, with its values."""
        self.opened += 1
        random = np.random.default_rng(self.opened)
        sizes = [sum(int(np.prod(b.sizes)) for b in f.boxes) for f in layout.fragments]
        offered = {
            i: random.standard_normal(size).astype(np.float32)
            for i, size in enumerate(sizes)
            if size <= SERVED_ELEMENTS_MAX
        }
        fresh = replace(self._service, run=FRESH, seqs={})
        for i, values in offered.items():
            boxes = list(layout.fragments[i].boxes)
            answer = await fresh.offer(values, "a", fragment=i, boxes=boxes)
            assert answer.verdict == pb.VERDICT_ACCEPTED, answer
        await self._stand(fresh, layout, offered)
        # A life of its own beside it, of a copy: what is on the disk says the same.
        kept = self._folder / "kept"
        shutil.copytree(self._service.shared.root, kept)
        try:
            async with service(kept, RULES) as again:
                await self._stand(replace(again, run=FRESH), layout, offered)
        finally:
            shutil.rmtree(kept)

    async def _stand(
        self, s: Service, layout: pb.Layout, offered: dict[int, npt.NDArray[np.float32]]
    ) -> None:
        observer = await s.stub.OpenRun(pb.OpenRunRequest(run=FRESH), timeout=PATIENCE_S)
        assert observer.layout == layout
        for i, values in offered.items():
            _, published = await s.pull(fragment=i, revision=0)
            assert np.array_equal(bits(published), bits(values))

    def _faults(self) -> str:
        """What the service's log would say of its faults."""
        return "".join("".join(traceback.format_exception(f)) for f in self._service.faults)


def bits(values: npt.NDArray[np.float32]) -> UInt16:
    """The values in bf16."""
    return np.frombuffer(encode(values, pb.CODEC_BF16), np.uint16)


def spans_of(where: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The stretches without a gap in a list of places, in its order: (start, length)."""
    heads = np.flatnonzero(np.diff(where, prepend=-2) != 1)
    return np.stack([where[heads], np.diff(heads, append=where.size)], axis=1)


@contextlib.contextmanager
def asking(folder: Path) -> Iterator[tuple[asyncio.Runner, Asking]]:
    """A service for many examples, and the loop that it lives in."""
    with pytest.MonkeyPatch.context() as patch:
        # Nobody's word of a new member is still to come here.
        patch.setattr(syncline_sync.host, "MEMBER_WAIT_S", 0.01)
        with at_work(Asking(folder)) as both:
            yield both
