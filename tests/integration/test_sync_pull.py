"""Pulls: any boxes of any kept revision, waiting for those to come, equal for everyone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.codec import check_chunk, decode, published
from syncline_proto.errors import Unreachable
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import residence
from syncline_sync.core.record import Saved
from syncline_sync.recalled import Recalled
from syncline_sync.servicer import SyncServicer
from syncline_sync.store import RunStore
from syncline_testing.service import RUN, Service, code_of, service

ROWS, COLUMNS = 700, 1500  # 1.05 million elements: two chunks in bf16, four and a bit in fp32
LAYOUT = Layout(
    (TensorSpec("w", (ROWS, COLUMNS), "bfloat16"), TensorSpec("b", (3,), "float32")),
    (FragmentSpec("f", (Box(0, (0, 0), (ROWS, COLUMNS)), Box(1, (0,), (3,)))),),
)
BOXES = [box.to_proto() for box in LAYOUT.fragments[0].boxes]
START = np.random.default_rng(0).standard_normal(LAYOUT.numel).astype(np.float32)


def rules(down: str, **given: Any) -> RunSettings:
    codec = {"up": "fp32", "down": down}
    return RunSettings.model_validate({"strategy": "local-sgd", "codec": codec, **given})


async def started(s: Service) -> None:
    await s.members({"a": 1})
    await s.open(LAYOUT, "a")
    await s.push(START, "a", kind=pb.PUSH_KIND_PARAMETERS, boxes=BOXES)


async def step(s: Service, base: int, value: float = 0.5) -> None:
    change = np.full(LAYOUT.numel, value, np.float32)
    await s.push(change, "a", base_revision=base, boxes=BOXES, tokens=10)
    await s.pull(revision=base + 1, header_only=True)


async def shard(s: Service, boxes: list[Box], **wanted: Any) -> np.ndarray:
    """Pull boxes, with every chunk checked as a client must."""
    request = pb.PullRequest(run=RUN, boxes=[box.to_proto() for box in boxes], **wanted)
    parts, left, codec = [], 0, pb.CODEC_UNSPECIFIED
    async for part in s.stub.Pull(request, timeout=20):
        if part.HasField("header"):
            left, codec = part.header.elements, part.header.codec
            continue
        left -= check_chunk(part.chunk, codec, left)
        parts.append(part.chunk.data)
    assert left == 0
    return decode(b"".join(parts), codec)


@pytest.mark.parametrize("down", ["fp32", "bf16"])
def test_any_boxes_come_in_their_order(tmp_path: Path, down: str) -> None:
    codec = pb.CODEC_BF16 if down == "bf16" else pb.CODEC_FP32
    everything = published(START, codec)
    matrix, vector = everything[:-3].reshape(ROWS, COLUMNS), everything[-3:]
    columns = Box(0, (0, 7), (ROWS, 900))
    rows = Box(0, (13, 0), (2, COLUMNS))
    corner = Box(0, (ROWS - 1, COLUMNS - 1), (1, 1))
    tail = Box(1, (1,), (2,))

    async def scenario() -> None:
        async with service(tmp_path, rules(down)) as s:
            await started(s)
            assert np.array_equal(await shard(s, [], newest=True), everything)
            assert np.array_equal(await shard(s, [columns], newest=True), matrix[:, 7:907].ravel())
            mixed = await shard(s, [tail, rows, corner], newest=True)
            expected = [vector[1:], matrix[13:15].ravel(), matrix[-1, -1:]]
            assert np.array_equal(mixed, np.concatenate(expected))
            assert (await shard(s, [Box(1, (1,), (0,))], newest=True)).size == 0
        async with service(tmp_path, rules(down)) as s:
            await s.members({"a": 1})
            assert np.array_equal(await shard(s, [columns], newest=True), matrix[:, 7:907].ravel())

    asyncio.run(scenario())


def test_an_observer_learns_the_layout_and_reads_but_cannot_push(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await s.members({"a": 1})
            with pytest.raises(grpc.aio.AioRpcError) as early:
                await s.stub.OpenRun(pb.OpenRunRequest(run=RUN), timeout=5)
            assert code_of(early.value) == "RUN_UNKNOWN"
            await started(s)
            opened = await s.stub.OpenRun(pb.OpenRunRequest(run=RUN), timeout=5)
            assert opened.layout == LAYOUT.to_proto()
            assert opened.fingerprint == LAYOUT.fingerprint()
            found, values = await s.pull(newest=True)
            assert (found.revision, found.elements) == (0, LAYOUT.numel)
            assert np.array_equal(values, START)
            with pytest.raises(grpc.aio.AioRpcError, match="replica: '' is not a name") as nobody:
                # The header alone: asyncio's client may lose the answer that comes while it writes.
                header = s.header(START, "", base_revision=0, boxes=BOXES)
                await s.send(pb.PushRequest(header=header))
            assert nobody.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())


def test_a_pull_waits_for_its_revision_and_an_old_one_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await started(s)
            waiting = [asyncio.ensure_future(s.pull(revision=1)) for _ in range(3)]
            too_early = s.stub.Pull(pb.PullRequest(run=RUN, revision=1), timeout=0.3)
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await too_early.read()
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert not any(pull.done() for pull in waiting)
            await step(s, base=0)
            for header, values in await asyncio.gather(*waiting):
                assert header.revision == 1
                assert np.array_equal(values, START - np.float32(0.5))
            await step(s, base=1)
            assert (await s.pull(revision=1))[0].revision == 1
            await step(s, base=2)
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await s.pull(revision=1)
            assert code_of(gone.value) == "REVISION_GONE"
            assert dict(gone.value.trailing_metadata() or ())["syncline-newest-revision"] == "3"

    asyncio.run(scenario())


def test_a_pull_of_revision_0_waits_for_the_first_offer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await s.members({"a": 1})
            await s.open(LAYOUT, "a")
            waiting = [
                asyncio.ensure_future(s.pull(newest=True)),
                asyncio.ensure_future(s.pull(revision=0)),
            ]
            await asyncio.sleep(0.1)
            await started(s)
            for _, values in await asyncio.gather(*waiting):
                assert np.array_equal(values, START)

    asyncio.run(scenario())


def test_a_revision_is_the_same_to_the_bit_over_a_restart_and_a_change_of_codec(
    tmp_path: Path,
) -> None:
    """Its codec and its tokens are its own, not those of a later revision."""

    async def scenario() -> None:
        async with service(tmp_path, rules("bf16")) as s:
            await started(s)
            await step(s, base=0)
            s.settings = rules("fp32")
            await s.members({"a": 1})
            await step(s, base=1)
            before = [await s.pull(revision=n) for n in (1, 2)]
        async with service(tmp_path, rules("fp32")) as s:
            await s.members({"a": 1})
            after = [await s.pull(revision=n) for n in (1, 2)]
            for (old, old_values), (new, new_values) in zip(before, after, strict=True):
                assert np.array_equal(old_values, new_values)
                assert (old.codec, old.committed_tokens) == (new.codec, new.committed_tokens)
                assert list(old.contributions) == list(new.contributions)
            assert [h.codec for h, _ in after] == [pb.CODEC_BF16, pb.CODEC_FP32]
            assert [h.committed_tokens for h, _ in after] == [10, 20]

    asyncio.run(scenario())


def test_the_header_alone_can_be_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await started(s)
            header, values = await s.pull(newest=True, header_only=True)
            assert (header.revision, header.elements, values.size) == (0, LAYOUT.numel, 0)

    asyncio.run(scenario())


def test_a_run_that_was_put_away_ends_the_pulls_that_wait_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await started(s)
            call = s.stub.Pull(pb.PullRequest(run=RUN, revision=9))
            waiting = asyncio.ensure_future(call.read())
            await asyncio.sleep(0.1)
            await (await s.residence.run(RUN)).stop()
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await waiting
            assert code_of(ended.value) == "REVISION_GONE"

    asyncio.run(scenario())


def test_an_ended_run_is_read_once_off_the_loop_and_few_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residence, "ENDED_MAX", 2)
    threads: list[tuple[str, threading.Thread]] = []
    read = Recalled.read

    def watched(store: RunStore, *given: Any) -> Recalled:
        threads.append((store.folder.name, threading.current_thread()))
        return read(store, *given)

    async def scenario() -> None:
        for name in ("x", "y", "z"):
            store = RunStore(tmp_path, name)
            store.begin()
            store.save_settings(rules("fp32"))
            store.save_layout(LAYOUT)
            store.fragments(LAYOUT)[0].commit(Saved(), START, np.zeros_like(START))
        monkeypatch.setattr(Recalled, "read", watched)

        async with service(tmp_path, rules("fp32")) as s:

            async def newest(name: str) -> int:
                request = pb.PullRequest(run=name, newest=True, header_only=True)
                return [part async for part in s.stub.Pull(request, timeout=20)][0].header.elements

            asked = await asyncio.gather(*(newest("x") for _ in range(5)))
            assert asked == [LAYOUT.numel] * 5
            for name in ("y", "x", "z", "x", "y"):
                await newest(name)

    asyncio.run(scenario())
    assert [name for name, _ in threads] == ["x", "y", "z", "y"], "y was asked for the longest ago"
    assert threading.main_thread() not in [thread for _, thread in threads]


@pytest.mark.parametrize("header_only", [False, True])
def test_who_does_not_take_the_header_is_cut_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header_only: bool
) -> None:
    request = pb.PullRequest(run=RUN, revision=0, header_only=header_only)
    lent: list[int] = []

    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await started(s)
            monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 0.2))
            runner = (await s.residence.run(RUN)).runners[0]
            value = await runner.holding.revisions.get(0)

            async def never_taken(_: bytes) -> None:
                lent.append(value._loans)
                await asyncio.Event().wait()

            pull = SyncServicer(s.host, s.residence, s.shared)._pull(request, never_taken)
            with pytest.raises(Unreachable, match=r"nothing was taken for 0\.2 s"):
                await asyncio.wait_for(pull, 20)
            assert (lent, value._loans) == ([1], 0)

    asyncio.run(scenario())


def test_an_older_life_of_a_replica_is_told_and_its_newer_one_pulls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, rules("fp32")) as s:
            await started(s)
            await s.members({"a": 2})
            with pytest.raises(grpc.aio.AioRpcError) as over:
                await s.pull(revision=1, replica="a", incarnation=1)
            assert over.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert code_of(over.value) == "LEASE_LOST"
            for incarnation in (2, 3):  # the word of the third may still be on its way
                header, _ = await s.pull(revision=0, replica="a", incarnation=incarnation)
                assert header.revision == 0
            await s.members({})
            assert (await s.pull(newest=True, replica="a", incarnation=2))[0].revision == 0

    asyncio.run(scenario())
