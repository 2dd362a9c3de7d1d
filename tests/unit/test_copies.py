"""What the way of a push and of a pull takes memory for, stage by stage: nothing is copied twice.

Python's own account of memory (``tracemalloc``) has every array and every bytes object, but for the
slabs of pushes, which are counted. Each stage may take what it makes, and little besides: one copy
more of a chunk, or of a payload, is too much.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from stages import PULLED_BYTES, PUSHED_BYTES, Stages, chunk_of, sealed
from syncline.anchors import Anchors
from syncline.carrier import Direct
from syncline.layout import outline
from syncline.line import PushLine
from syncline.link import _parts
from syncline.payload import Encoded, Values
from syncline.ranks import Ranks
from syncline.scratch import Scratch
from syncline.stalled import Watched
from syncline_proto.codec import CODEC_BY_NAME, advance, codec_of, encode
from syncline_proto.parts import Chunk
from syncline_proto.settings import CodecName, DownCodecName, RunSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import slabs
from syncline_sync.budget import Budget
from syncline_sync.core import merge
from syncline_sync.core.record import Saved
from syncline_sync.lull import Lull
from syncline_sync.places import Places
from syncline_sync.published import Published
from syncline_sync.receiving import Receiving
from syncline_sync.senders import Senders
from syncline_sync.sending import Sending
from syncline_sync.shard import shard_of
from syncline_sync.shelf import Loan, Shelf
from syncline_sync.sources import Difference
from syncline_sync.staging import Staging
from syncline_sync.stored import sent_as_bits, sent_of
from syncline_testing.service import flat_layout
from syncline_testing.staging import header

NUMEL = 256 * 11_719
VALUES = np.random.default_rng(0).standard_normal(NUMEL).astype(np.float32)
LITTLE = PULLED_BYTES // 2
"""Pieces that fit into a processor's cache, and objects: less than a chunk."""
SORTED = 3 << 20
"""What top-k has beside a piece of 1 MiB to find the largest of it; all values are 12 MB."""


def peak(work: Callable[[], Any]) -> int:
    """Bytes that ``work`` has at a time beyond what there was before; it is done once before."""
    work()
    tracemalloc.start()
    try:
        made = work()
        most = tracemalloc.get_traced_memory()[1]
        del made
        return most
    finally:
        tracemalloc.stop()


def little(codec: str) -> int:
    """Bytes that encoding may take besides what it makes."""
    return LITTLE + (SORTED if codec == "topk" else 0)


@pytest.fixture(params=["fp32", "bf16", "int8", "int4", "topk"])
def stages(request: pytest.FixtureRequest, tmp_path: Path) -> Stages:
    up: str = request.param
    down = {"int4": "int8", "topk": "bf16"}
    return Stages(tmp_path, NUMEL, up, down.get(up, up))


def test_a_payload_is_encoded_into_its_place(stages: Stages) -> None:
    assert peak(stages._encode) <= little(codec_of(stages.up).name)


def test_chunks_are_written_in_one_copy_and_read_in_none(stages: Stages) -> None:
    payload = stages.payload.size
    whole = stages.payload.data, stages.up, PUSHED_BYTES
    assert peak(lambda: list(sealed(*whole))) <= payload + LITTLE
    messages = list(sealed(*whole))
    assert peak(lambda: [chunk_of(message) for message in messages]) <= LITTLE


def test_a_push_is_folded_by_pieces(stages: Stages) -> None:
    stages._encode()
    shard = stages._stage(sealed(stages.payload.data, stages.up, PUSHED_BYTES))
    push = [shard.payload()]
    assert peak(lambda: merge.fold(stages.sum, push, 1.0, is_first=True)) <= LITTLE
    assert peak(lambda: merge.fold(stages.sum, push, 1.0)) <= LITTLE


def test_an_outer_step_makes_nothing_but_the_difference(stages: Stages) -> None:
    stages.sum[:] = 1e-3
    made = codec_of(stages.down).size(NUMEL) if stages.by_difference else 0
    assert peak(stages._step) <= made + LITTLE


def test_what_is_sent_of_a_revision_is_written_where_it_lies(stages: Stages) -> None:
    if stages.by_difference:
        return
    stages.spare = np.empty(NUMEL, np.float32)
    assert peak(lambda: sent_of(stages.parameters, stages.down, stages.spare)) <= LITTLE


def test_a_commit_writes_a_revision_from_where_it_lies(stages: Stages) -> None:
    def commit() -> None:
        stages.revision += 1
        stages._commit()

    assert peak(commit) <= LITTLE
    size = max(path.stat().st_size for path in stages.store.folder.iterdir())
    assert size > 2 * stages.parameters.nbytes, "parameters and momentum"


def test_a_pull_is_taken_in_where_it_belongs(stages: Stages) -> None:
    stages.sum[:] = 1e-3
    sent = stages._publish(stages._step())
    messages = list(sealed(sent, stages.down, PULLED_BYTES))

    def pull() -> None:
        stages._take(messages)
        stages._write()

    pull()  # the anchor before is what the next one comes into
    assert peak(pull) <= LITTLE


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_a_replica_encodes_a_fragment_into_the_one_buffer_that_it_uses_again(
    codec: CodecName,
) -> None:
    scratch = Scratch()
    shards = outline(nn.Linear(256, NUMEL // 256, bias=False), Ranks()).cut().shards
    anchors = Anchors(shards, Direct(scratch))
    anchors.adopt(0, VALUES, pb.PullHeader(codec=pb.CODEC_FP32))
    made: list[int] = []

    def push() -> None:
        payload = anchors.pseudo_gradient(0, codec).here()
        made.append(payload.ctypes.data)
        scratch.give_back(payload)

    assert peak(push) <= LITTLE
    assert len(set(made)) == 1


@pytest.mark.parametrize("codec", ["int4", "topk"])
def test_with_feedback_a_push_is_encoded_by_chunks_and_what_it_lost_is_all_that_is_made(
    codec: CodecName,
) -> None:
    payload = Values(VALUES, codec)
    chunks = min(PUSHED_BYTES, payload.size)
    assert peak(lambda: deque(payload.chunks(), maxlen=0)) <= chunks + little(codec)
    assert peak(payload.loss) <= VALUES.nbytes + little(codec)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4", "topk"])
def test_a_replica_has_one_message_of_a_push_at_a_time(codec: CodecName) -> None:
    payload = Encoded(np.asarray(encode(VALUES, CODEC_BY_NAME[codec])), codec)
    for chunk in payload.chunks():
        assert np.shares_memory(np.frombuffer(chunk.data, np.uint8), payload.memory)
    there: Any = SimpleNamespace(has_room=lambda: True, moved=lambda: None)
    watched: Watched = there

    def send() -> None:
        line = PushLine(1, 60.0)
        with line.turn(line.join()) as sending:
            deque(_parts(pb.PushHeader(), payload, watched, sending), maxlen=0)

    assert peak(send) <= min(PUSHED_BYTES, payload.size) + LITTLE


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4", "topk"])
def test_a_service_takes_in_a_push_in_slabs_that_are_used_again(
    codec: CodecName, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, make, pool = list[int](), slabs.fresh, slabs.Slabs()
    monkeypatch.setattr(slabs, "fresh", lambda size: fresh.append(1) or make(size))
    number, layout = CODEC_BY_NAME[codec], flat_layout(NUMEL)
    payload, budget = encode(VALUES, number), Budget(1 << 30)
    chunks = [chunk_of(message) for message in sealed(payload, number, PUSHED_BYTES)]
    head = header(codec=number, boxes=list(layout.to_proto().fragments[0].boxes))

    def push() -> None:
        staging, places = Staging("run", layout, budget), Places(layout)
        asyncio.run(taken_in(staging, shard_of(places, head, pool), chunks, budget))

    assert peak(push) <= len(payload) % slabs.SLAB_BYTES + codec_of(number).size(4096) + LITTLE
    assert len(fresh) == len(payload) // slabs.SLAB_BYTES, "of two pushes, one after the other"


async def taken_in(staging: Staging, shard: Any, chunks: list[Chunk], budget: Budget) -> None:
    """A push of one rank that comes in, and then is forgotten."""

    async def parts() -> AsyncIterator[Chunk]:
        for chunk in chunks:
            yield chunk

    async def at_once(work: Callable[[Any], None], given: Any) -> None:
        work(given)

    def nothing(*_: Any) -> None:
        pass

    async def told(_: Any) -> None:
        pass

    gauge = SimpleNamespace(set=nothing, staged=SimpleNamespace(set=nothing), moved=nothing)
    shared: Any = SimpleNamespace(metrics=gauge, budget=budget, lull=Lull(), compute=at_once)
    run: Any = SimpleNamespace(settings=RunSettings(), metrics=gauge)
    call: Any = SimpleNamespace(send_initial_metadata=told)
    staged = staging.join(shard)
    await Receiving(shared, run, staging, staged, shard, nothing).receive(parts(), call)
    assert shard.whole
    shard.free()


def lent(down: DownCodecName, *, is_difference: bool) -> tuple[Loan, Any]:
    """What a pull reads, and the memory that has it."""
    number, shelf = CODEC_BY_NAME[down], Shelf("revision")
    if down == "int8":
        held = np.zeros(NUMEL, np.uint16)
        made = advance(held, VALUES)
        assert made is not None
        value = Published(Saved(), pb.CODEC_BF16, sent_as_bits(held))
        memory, difference = (made, Difference(made)) if is_difference else (held, None)
    else:
        source, spare = sent_of(VALUES, number, None)
        value, difference = Published(Saved(), number, source), None
        memory = VALUES if spare is None else spare
    shelf.put(0, value)
    return Loan(shelf, 0, value, difference), np.asarray(memory)


@pytest.mark.parametrize(("start", "end"), [(0, NUMEL - 100), (256 * 1111, NUMEL)])
@pytest.mark.parametrize(
    ("down", "is_difference"), [("fp32", False), ("bf16", False), ("int8", False), ("int8", True)]
)
def test_what_is_pulled_lies_in_what_is_published_and_is_copied_into_its_message_alone(
    down: DownCodecName, is_difference: bool, start: int, end: int
) -> None:
    loan, memory = lent(down, is_difference=is_difference)
    where = Extent.of(np.array([[start, end - start]], np.int64))
    sizes: list[int] = []

    async def read() -> None:
        with ThreadPoolExecutor(1) as pool:
            for spans in loan.cuts(where):
                data = await loan.read(spans, pool, pool)
                assert np.shares_memory(np.frombuffer(data, np.uint8), memory)

    async def write(message: bytes) -> None:
        sizes.append(len(message))

    def send() -> None:
        metrics = SimpleNamespace(moved=lambda *_: None)
        shared: Any = SimpleNamespace(lull=Lull(), pool=None, disk=SimpleNamespace(readers=None))
        run: Any = SimpleNamespace(settings=RunSettings(), name="run", metrics=metrics)
        sending = Sending(shared=shared, run=run, loan=loan, write=write)
        asyncio.run(sending.send(b"", where, Senders(1, 1)))

    asyncio.run(read())
    assert peak(send) <= PULLED_BYTES + LITTLE
    assert sum(sizes) > 2 * (end - start)
