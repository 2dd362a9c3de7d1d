"""A revision that is being written: its readers have all but its end, and that once it is kept."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.codec import decode
from syncline_proto.layout import Layout
from syncline_proto.settings import RunSettings
from syncline_proto.spans import Spans
from syncline_proto.status import PUBLISHED_TRAILER
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.cuts import Cuts
from syncline_sync.shelf import Shelf
from syncline_sync.store import RunStore
from syncline_testing.service import RUN, Service, flat_layout, service
from syncline_testing.slow_disk import SlowDisk

LONG = flat_layout(1_000_000)
"""Four chunks of fp32, and none is whole."""
MOST = 3 * 262_144
SHORT = flat_layout(10)
SETTINGS = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def start(layout: Layout) -> np.ndarray:
    return np.arange(layout.numel, dtype=np.float32)


async def pushed(s: Service, layout: Layout) -> None:
    await s.members({"a": 1})
    await s.open(layout, "a")
    await s.push(start(layout), "a", kind=pb.PUSH_KIND_PARAMETERS)
    change = np.full(layout.numel, 0.5, np.float32)
    await s.push(change, "a", base_revision=0, tokens=10)


class Reader:
    """A pull of revision 1, message by message."""

    def __init__(self, s: Service, header_only: bool = False) -> None:
        request = pb.PullRequest(run=RUN, revision=1, header_only=header_only)
        self.call = s.stub.Pull(request, timeout=60)
        self.stream = aiter(self.call)
        self.header: pb.PullHeader | None = None
        self.values = np.empty(0, np.float32)

    async def on(self) -> bool:
        """Read the next message; False at the end."""
        part = await anext(self.stream, None)
        if part is None:
            return False
        if part.HasField("header"):
            self.header = part.header
        else:
            size = len(part.chunk.data) // 4
            self.values = np.append(self.values, decode(part.chunk.data, pb.CODEC_FP32, size))
        return True

    async def until_held_back(self, before: int | None) -> asyncio.Task[bool]:
        """Read so many elements (None: no header), and see that no more comes for a while.

        The next message, which is waited for.
        """
        while (None if self.header is None else self.values.size) != before:
            assert await self.on(), "it has ended"
        reading = asyncio.create_task(self.on())
        assert not (await asyncio.wait({reading}, timeout=0.2))[0], "more has come"
        return reading


@pytest.mark.parametrize(
    ("layout", "header_only", "before"),
    [(LONG, False, MOST), (SHORT, False, 0), (LONG, True, None)],
)
def test_a_reader_has_all_but_the_end_while_the_disk_is_slow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: Layout,
    header_only: bool,
    before: int | None,
) -> None:
    """``before``: elements that come before the end; None: not even the header does."""

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            with SlowDisk(monkeypatch, "r00000001") as disk:
                await pushed(s, layout)
                await disk.until(lambda d: bool(d.at_once))
                reader = Reader(s, header_only)
                end = await reader.until_held_back(before)
                newest, _ = await s.pull(newest=True, header_only=True)
                assert newest.revision == 0, "for all who do not name it there is none"
                assert [f.revision for f in (await s.status()).fragments] == [0]
                disk.open()
                while await end:
                    end = asyncio.create_task(reader.on())
            assert reader.header is not None and reader.header.revision == 1
            assert reader.header.published_ago_s == 0.0, "it was still to be"
            trailer = dict(await reader.call.trailing_metadata())
            assert 0.0 <= float(trailer[PUBLISHED_TRAILER]) < 60.0
            later = s.stub.Pull(pb.PullRequest(run=RUN, revision=1))
            assert (await anext(aiter(later))).header.published_ago_s > 0.0
            assert [part async for part in later], "its chunks"
            assert PUBLISHED_TRAILER not in dict(await later.trailing_metadata())
            expected = start(layout) - np.float32(0.5)
            assert np.array_equal(reader.values, expected[: 0 if header_only else None])

    asyncio.run(scenario())


def test_who_comes_late_to_a_slow_disk_has_nothing_before_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be sent all but the end again each time that its reader gives up."""

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            with SlowDisk(monkeypatch, "r00000001") as disk:
                await pushed(s, LONG)
                await disk.until(lambda d: bool(d.at_once))
                first = Reader(s)
                held = await first.until_held_back(MOST)
                monkeypatch.setattr(Shelf, "HEAD_START_S", 0.0)  # that is over
                late = Reader(s)
                end = await late.until_held_back(None)
                disk.open()
                for reader, reading in ((first, held), (late, end)):
                    while await reading:
                        reading = asyncio.create_task(reader.on())
                    expected = start(LONG) - np.float32(0.5)
                    assert np.array_equal(reader.values, expected)
            assert late.header is not None and late.header.published_ago_s < 60.0
            assert PUBLISHED_TRAILER not in dict(await late.call.trailing_metadata())

    asyncio.run(scenario())


def test_nothing_is_cut_for_who_waits_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number may wait, and the spans of a chunk may be a MiB."""
    drawn: list[int] = []
    draw = Cuts.__next__

    def watched(cuts: Cuts) -> Spans:
        spans = draw(cuts)
        drawn.append(len(spans))
        return spans

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            with SlowDisk(monkeypatch, "r00000001") as disk:
                await pushed(s, LONG)
                await disk.until(lambda d: bool(d.at_once))
                monkeypatch.setattr(Cuts, "__next__", watched)
                reader = Reader(s)
                end = await reader.until_held_back(MOST)
                assert len(drawn) == 3
                disk.open()
                assert await end
            assert len(drawn) == 4
            assert not await reader.on()

    asyncio.run(scenario())


def test_nobody_has_a_revision_that_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            with SlowDisk(monkeypatch, "r00000001") as disk:
                await pushed(s, LONG)
                reader = Reader(s)
                end = await reader.until_held_back(MOST)
                disk.error = OSError(errno.ENOSPC, "No space left on device")
                disk.open()
                async with asyncio.timeout(20):
                    while not s.faults:
                        await asyncio.sleep(0.01)
            assert not end.done()
            end.cancel()
            assert reader.values.size < LONG.numel
        (store,) = RunStore(tmp_path, RUN).fragments(LONG)
        loaded = store.load()
        assert loaded is not None and loaded.saved.revision == 0
        assert np.array_equal(loaded.parameters, start(LONG))

    asyncio.run(scenario())
