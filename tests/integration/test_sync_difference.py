"""int8 down: differences, of any boxes, for who names the value before; for others the whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from syncline_proto.codec import CHUNK_BYTES_MAX, Follower, UInt16, crc32c, encode
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.settings import RunSettings
from syncline_proto.spans import spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.servicer import SyncServicer
from syncline_testing.service import RUN, Service, flat_layout, service

ROWS, COLUMNS = 700, 1500
LAYOUT = Layout(
    (TensorSpec("w", (ROWS, COLUMNS), "bfloat16"), TensorSpec("b", (300,), "float32")),
    (FragmentSpec("f", (Box(0, (0, 0), (ROWS, COLUMNS)), Box(1, (0,), (300,)))),),
)
WHOLE = list(LAYOUT.fragments[0].boxes)
BOXES = [box.to_proto() for box in WHOLE]
START = np.random.default_rng(0).standard_normal(LAYOUT.numel).astype(np.float32)
SETTINGS = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "int8"}}
)


async def round_of(s: Service, base: int) -> None:
    rng = np.random.default_rng(base + 1)
    change = rng.normal(scale=0.01, size=LAYOUT.numel).astype(np.float32)
    await s.push(change, "a", base_revision=base, boxes=BOXES, tokens=10)
    await s.pull(revision=base + 1, header_only=True)


async def whole(s: Service, revision: int) -> tuple[str, UInt16]:
    """The name of a published value, and the value in bf16, pulled whole."""
    header, values = await s.pull(revision=revision)
    assert (header.codec, header.difference_from) == (pb.CODEC_BF16, "")
    return header.value, np.frombuffer(encode(values, pb.CODEC_BF16), np.uint16)


async def pulled(s: Service, boxes: list[Box], **given: Any) -> tuple[pb.PullHeader, list[bytes]]:
    request = pb.PullRequest(run=RUN, boxes=[box.to_proto() for box in boxes], **given)
    parts = [part async for part in s.stub.Pull(request, timeout=20)]
    chunks = [part.chunk for part in parts[1:]]
    assert all(crc32c(chunk.data) == chunk.crc32c for chunk in chunks)
    return parts[0].header, [chunk.data for chunk in chunks]


def followed(boxes: list[Box], held: UInt16, chunks: list[bytes]) -> UInt16:
    where = spans(LAYOUT, 0, boxes)
    out, filled = np.empty(held.size, np.uint16), 0
    follower = Follower(held, where)
    for data in chunks:
        assert len(data) <= CHUNK_BYTES_MAX
        filled += follower.follow(data, out[filled:])
    assert filled == held.size
    return out


def bytes_down(s: Service) -> float:
    labels = {"run": RUN, "direction": "down"}
    return s.shared.metrics.registry.get_sample_value("syncline_bytes_total", labels) or 0.0


async def started(s: Service) -> None:
    await s.members({"a": 1})
    await s.open(LAYOUT, "a")
    await s.offer(START, "a", boxes=BOXES)


async def first_round(s: Service) -> tuple[str, UInt16, UInt16]:
    """The name of the first published value, that value, and the one after a round."""
    await started(s)
    name, before = await whole(s, 0)
    await round_of(s, base=0)
    return name, before, (await whole(s, 1))[1]


def test_any_boxes_follow_by_difference_to_the_bits_of_a_whole_pull(tmp_path: Path) -> None:
    columns = [Box(0, (0, 7), (ROWS, 900))]
    mixed = [Box(1, (100,), (200,)), Box(0, (13, 0), (301, COLUMNS)), Box(0, (0, 0), (1, 800))]

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            name, before, after = await first_round(s)
            for boxes in (WHOLE, columns, mixed):
                so_far = bytes_down(s)
                header, chunks = await pulled(s, boxes, revision=1, held=name)
                assert (header.codec, header.difference_from) == (pb.CODEC_INT8, name)
                where = spans(LAYOUT, 0, boxes)
                places = np.concatenate([np.arange(at, at + size) for at, size in where])
                new = followed(boxes, before[places], chunks)
                assert np.array_equal(new, after[places])
                assert header.elements == places.size
                assert bytes_down(s) - so_far == sum(map(len, chunks)) < 1.03 * places.size
            header, chunks = await pulled(s, [], newest=True, held=name, header_only=True)
            assert header.revision == 1 and not chunks

    asyncio.run(scenario())


def test_the_name_of_another_runs_or_fragments_value_brings_the_whole(tmp_path: Path) -> None:
    """At the same revision of the same epoch of the same service."""
    layout = flat_layout(1000, fragments=2)
    ones = np.ones(1000, np.float32)

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            names: dict[tuple[str, int], str] = {}
            for run in (RUN, "other"):
                of = replace(s, run=run, seqs={})
                await of.members({"a": 1})
                await of.open(layout, "a")
                for fragment in (0, 1):
                    await of.offer(ones, "a", fragment=fragment)
                    header, _ = await of.pull(revision=0, fragment=fragment)
                    names[run, fragment] = header.value
                    await of.push(0.01 * ones, "a", base_revision=0, fragment=fragment)
                    for held in names.values():
                        header, _ = await of.pull(
                            revision=1, fragment=fragment, held=held, header_only=True
                        )
                        mine = held == names[run, fragment]
                        assert header.difference_from == (held if mine else "")
            assert len(set(names.values())) == 4

    asyncio.run(scenario())


def test_what_the_header_says_is_sent_whatever_goes_on_meanwhile(tmp_path: Path) -> None:
    """The memory of a difference that nobody reads is used for the next one."""

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            name, before, after = await first_round(s)
            parts: list[bytes] = []

            async def write(part: bytes) -> None:
                parts.append(part)
                if len(parts) == 1:  # the line is full, and others go on
                    await round_of(s, base=1)

            boxes = [box.to_proto() for box in WHOLE]
            request = pb.PullRequest(run=RUN, revision=1, held=name, boxes=boxes)
            await SyncServicer(s.host, s.residence, s.shared)._pull(request, write)
            header = pb.PullResponse.FromString(parts[0]).header
            assert (header.revision, header.difference_from) == (1, name)
            chunks = [pb.PullResponse.FromString(part).chunk.data for part in parts[1:]]
            assert np.array_equal(followed(WHOLE, before, chunks), after)

    asyncio.run(scenario())


def test_whoever_holds_anything_else_is_sent_the_value_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            first, _ = await whole(s, 0)
            await round_of(s, base=0)
            second, _ = await whole(s, 1)
            await round_of(s, base=1)
            for held in ("", first, "x" * 10_000, second[:-1], f" {second}"):
                header, chunks = await pulled(s, WHOLE, revision=2, held=held)
                assert (header.codec, header.difference_from) == (pb.CODEC_BF16, "")
                assert sum(map(len, chunks)) == 2 * LAYOUT.numel
            header, _ = await pulled(s, WHOLE, revision=1, held=first)
            assert header.difference_from == "", "of the newest alone"
            crumbs = [Box(0, (0, 0), (ROWS, 15))]
            header, _ = await pulled(s, crumbs, revision=2, held=second)
            assert header.difference_from == "", "it would be hardly smaller"
            kept = await whole(s, 2)
        async with service(tmp_path, SETTINGS) as s:
            await s.members({"a": 1})
            again = await whole(s, 2)
            assert again[0] != kept[0] and np.array_equal(again[1], kept[1])
            s.seqs["a", 1, 0] = 3
            await round_of(s, base=2)
            header, chunks = await pulled(s, WHOLE, revision=3, held=again[0])
            assert header.difference_from == again[0]
            new = followed(WHOLE, again[1], chunks)
            assert np.array_equal(new, (await whole(s, 3))[1])
            header, _ = await pulled(s, WHOLE, revision=3, held=kept[0])
            assert header.difference_from == "", "what another process named may be another value"

    asyncio.run(scenario())
