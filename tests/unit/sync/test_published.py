"""What a pull sends: the same bytes however a shard is cut, and nobody waits for a strange cut."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline_proto.codec import (
    CODEC_BY_NAME,
    Float32,
    advance,
    codec_of,
    crc32c,
    encode,
)
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.settings import RunSettings
from syncline_proto.spans import NOWHERE, Extent, extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import staged
from syncline_sync.core.record import Saved
from syncline_sync.cuts import CUT_SPANS, FEW_SPANS
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.published import PULLED_BYTES_MAX, Published, Whose
from syncline_sync.shelf import (
    FEW_CUT_SPANS,
    LONG_DIFFERENCE_ELEMENTS,
    Loan,
    NewestNamed,
    Shelf,
)
from syncline_sync.sources import Difference, Plain, Sent, Source
from syncline_testing.service import service

SIZE = 1_500_000
VALUES = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)


def cut(count: int, skip: int, seed: int) -> np.ndarray:
    """Spans that cover VALUES in ``count`` spans and a strange order, but for one in ``skip``."""
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.choice(np.arange(1, SIZE), count - 1, replace=False))
    starts = np.concatenate([[0], edges])
    every = np.stack([starts, np.diff(np.append(starts, SIZE))], axis=1)
    return rng.permutation(every[np.arange(count) % skip != 1])


SOURCE = Sent(encode(np.ones(8, np.float32), pb.CODEC_FP32), pb.CODEC_FP32)

PLAIN = Plain(VALUES, pb.CODEC_BF16)


def sent(number: pb.Codec.ValueType) -> Published:
    return Published(Saved(), number, Sent(encode(VALUES, number), number))


def sources(folder: Path, number: pb.Codec.ValueType) -> list[Source]:
    """VALUES in memory as they are sent, as they are, and in a file of the store."""
    store = FragmentStore(folder, Place(run="r", fragment=0, layout="l", numel=SIZE))
    store.commit(Saved(), VALUES, np.zeros_like(VALUES))
    return [
        Sent(encode(VALUES, number), number),
        Plain(VALUES, number),
        store.filed(Saved(), number),
    ]


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("count", "skip"), [(1, 2), (2, 2), (50, 3), (FEW_SPANS, 7), (5_000, 2), (400_000, 5)]
)
def test_chunks_are_the_shard_in_its_order(
    tmp_path: Path, codec: str, count: int, skip: int
) -> None:
    """From wherever they come."""
    spans = cut(count, skip, seed=count)
    number = CODEC_BY_NAME[codec]
    wide = codec_of(number).size(1)
    payload = bytes(encode(VALUES, number))
    expected = b"".join(payload[a * wide : (a + n) * wide] for a, n in spans.tolist())
    for source in sources(tmp_path, number):
        value = Published(Saved(), number, source)
        chunks = [source.read(part) for part in value.cuts(Extent.of(spans))]
        assert b"".join(chunks) == expected
        assert {len(chunk) for chunk in chunks[:-1]} <= {PULLED_BYTES_MAX}
        source.close()


@pytest.mark.parametrize("width", [1, 3])
def test_no_chunk_of_a_shard_in_stripes_has_more_spans_than_a_bound(width: int) -> None:
    """They are made chunk by chunk, for a pull that may wait for its reader between two."""
    rows = SIZE // 10
    whole = Box(0, (0, 0), (rows, 10))
    layout = Layout((TensorSpec("w", (rows, 10), "float32"),), (FragmentSpec("f", (whole,)),))
    stripe = extent(layout, 0, [Box(0, (0, 4), (rows, width))])
    value = sent(pb.CODEC_BF16)
    chunks = list(value.cuts(stripe))
    assert max(map(len, chunks)) <= CUT_SPANS + 1
    assert np.array_equal(np.concatenate(chunks), stripe.spans())


@pytest.mark.parametrize("single", [1, FEW_SPANS, FEW_SPANS + 1])
def test_a_parameter_of_one_element_beside_stripes_makes_no_chunk_shorter(single: int) -> None:
    """Unless such spans are many, so that they count."""
    rows, width = SIZE // 20, 8
    shapes = (rows, 10), (2 * single,)
    tensors = tuple(TensorSpec(str(i), shape, "float32") for i, shape in enumerate(shapes))
    wholes = tuple(Box(i, (0,) * len(shape), shape) for i, shape in enumerate(shapes))
    layout = Layout(tensors, (FragmentSpec("f", wholes),))
    ones = [Box(1, (2 * i,), (1,)) for i in range(single)]
    shard = extent(layout, 0, [Box(0, (0, 0), (rows, width)), *ones])
    chunks = list(sent(pb.CODEC_BF16).cuts(shard))
    assert np.array_equal(np.concatenate(chunks)[-single:], shard.spans()[-single:])
    assert max(map(len, chunks)) <= CUT_SPANS + FEW_SPANS
    full = PULLED_BYTES_MAX // 2 if single <= FEW_SPANS else CUT_SPANS
    assert int(chunks[0][:, 1].sum()) == full


def test_an_empty_shard_has_no_chunks() -> None:
    assert list(sent(pb.CODEC_BF16).cuts(NOWHERE)) == []


@pytest.mark.parametrize("count", [1, 2, FEW_CUT_SPANS, FEW_CUT_SPANS + 1])
def test_the_chunks_of_a_difference_are_within_their_bound(count: int) -> None:
    """However its spans lie in its blocks; and they are few where the spans are."""
    held = np.zeros(SIZE, np.uint16)
    payload = advance(held, VALUES)
    assert payload is not None
    difference = Difference(payload)
    loan = Loan(Shelf("revision"), 1, sent(pb.CODEC_BF16), difference)
    spans = cut(count, count + 1, seed=count)
    sizes = [len(difference.read(part)) for part in loan.cuts(Extent.of(spans))]
    assert max(sizes) <= PULLED_BYTES_MAX
    if count <= FEW_CUT_SPANS:
        assert len(sizes) == -(-int(spans[:, 1].sum()) // LONG_DIFFERENCE_ELEMENTS)


def test_a_chunk_has_its_own_checksum_whoever_asks_first() -> None:
    held = np.zeros(SIZE, np.uint16)
    payload = advance(held, VALUES)
    assert payload is not None
    as_sent, difference = Sent(encode(VALUES, pb.CODEC_BF16), pb.CODEC_BF16), Difference(payload)
    value = Published(Saved(), pb.CODEC_BF16, as_sent)
    whole = Loan(Shelf("revision"), 1, value)
    by_difference = Loan(Shelf("revision"), 1, value, difference)
    where = Extent.of(np.array([[0, SIZE]]))
    for _ in range(2):
        for loan, source in ((whole, as_sent), (by_difference, difference)):
            for spans in loan.cuts(where):
                data = source.read(spans)
                assert loan.checksum(spans, data) == crc32c(data)


def test_checksums_that_are_kept_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncline_sync.shelf.SUMS_MAX", 3)
    as_sent = Sent(encode(VALUES, pb.CODEC_BF16), pb.CODEC_BF16)
    value = Published(Saved(), pb.CODEC_BF16, as_sent)
    loan = Loan(Shelf("revision"), 1, value)
    for start in range(10):
        spans = np.array([[start, 5]])
        data = as_sent.read(spans)
        assert loan.checksum(spans, data) == crc32c(data)
    assert len(value.sums) == len(value.asked) == 3


def test_a_value_may_be_read_for_a_while_after_its_shelf_has_dropped_it() -> None:
    shelf = Shelf("revision")
    values = [sent(pb.CODEC_FP32) for _ in range(4)]
    shelf.put(0, values[0])
    shelf.put(1, values[1])
    loan = Loan(shelf, 0, values[0])
    loan.check(now_s=1000.0, leave_s=10.0)
    shelf.put(2, values[2])
    loan.check(now_s=1001.0, leave_s=10.0)
    loan.check(now_s=1010.9, leave_s=10.0)
    shelf.put(3, values[3])
    with pytest.raises(NewestNamed, match="^revision 0 is gone; the newest is 3") as gone:
        loan.check(now_s=1011.0, leave_s=10.0)
    assert gone.value.newest == 3
    shelf.end("over", 3)
    with pytest.raises(NewestNamed, match="^over"):
        loan.check(now_s=1011.0, leave_s=10.0)


def test_only_so_many_dropped_values_are_read_still_and_who_is_furthest_goes_on() -> None:
    """The removed file of each takes the disk's room."""
    shelf = Shelf("revision")
    values = [sent(pb.CODEC_FP32) for _ in range(8)]
    loans = [Loan(shelf, number, value) for number, value in enumerate(values)]

    def go_on() -> list[int]:
        found: list[int] = []
        for number, loan in enumerate(loans[:6]):
            with contextlib.suppress(NewestNamed):
                loan.check(now_s=1.0, leave_s=10.0)
                found.append(number)
        return found

    for number in range(6):
        loans[number].__enter__()
        shelf.put(number, values[number])
    assert go_on() == [0, 1, 4, 5], "4 and 5 are kept"
    loans[0].__exit__()
    shelf.put(6, values[6])
    shelf.put(7, values[7])
    assert go_on() == [0, 1, 4], "there was a place for 4, and none for 5"


def test_what_is_announced_is_there_for_who_names_it_and_ends_with_its_publication() -> None:
    async def scenario() -> None:
        shelf = Shelf("revision")
        shelf.put(0, sent(pb.CODEC_FP32))
        waiting = asyncio.create_task(shelf.get(1))
        value = Published(Saved(revision=1), pb.CODEC_FP32, SOURCE, is_announced=True)
        shelf.announce(1, value, 0.0)
        assert await waiting is value is await shelf.get(1)
        assert (shelf.newest, [number for number, _ in shelf.values]) == (0, [0])
        assert (await shelf.get(None)).saved.revision == 0, "the newest that is published"
        loan = Loan(shelf, 1, value)
        loan.check(now_s=0.0, leave_s=0.0)
        assert not loan.is_to_end
        ending = asyncio.create_task(loan.published())
        await asyncio.sleep(0.01)
        assert not ending.done()
        value.publish(5.0)
        shelf.put(1, value)
        await ending
        assert loan.is_to_end and shelf.newest == 1
        shelf.put(2, sent(pb.CODEC_FP32))
        shelf.put(3, sent(pb.CODEC_FP32))
        await loan.published()  # it was, and may be read for a while

    asyncio.run(scenario())


def test_who_comes_long_after_it_was_announced_waits_until_it_is_published() -> None:
    async def scenario() -> None:
        shelf = Shelf("revision")
        shelf.put(0, sent(pb.CODEC_FP32))
        early = asyncio.create_task(shelf.get(1, now_s=60.0))
        await asyncio.sleep(0)
        value = Published(Saved(revision=1), pb.CODEC_FP32, SOURCE, is_announced=True)
        shelf.announce(1, value, 100.0)
        assert await early is value, "however long it has waited"
        last_s = 100.0 + Shelf.HEAD_START_S
        assert await shelf.get(1, now_s=last_s) is value
        late = asyncio.create_task(shelf.get(1, now_s=last_s + 0.1))
        await asyncio.sleep(0.01)
        shelf.be_in(0)  # whatever wakes it
        await asyncio.sleep(0.01)
        assert not late.done()
        value.publish(200.0)
        shelf.put(1, value)
        assert await late is value
        assert await shelf.get(1, now_s=300.0) is value

    asyncio.run(scenario())


def test_what_is_announced_and_never_published_has_no_end() -> None:
    async def scenario() -> None:
        shelf = Shelf("revision")
        shelf.put(0, sent(pb.CODEC_FP32))
        value = Published(Saved(revision=1), pb.CODEC_FP32, SOURCE, is_announced=True)
        shelf.announce(1, value, 0.0)
        loan = Loan(shelf, 1, value)
        ending = asyncio.create_task(loan.published())
        await asyncio.sleep(0)
        shelf.end("put away", 0)
        with pytest.raises(NewestNamed, match="^put away"):
            await ending
        assert not loan.is_to_end, "for who was in the midst of it, and may go on for a while"
        with pytest.raises(NewestNamed, match="^put away"):
            await loan.published()

    asyncio.run(scenario())


def test_who_does_not_wait_is_told_whether_a_revision_is_gone_or_yet_to_come() -> None:
    shelf = Shelf("revision")
    assert shelf.missing(0).message == "revision 0 is still to come; there is none yet."
    for number in range(3):
        shelf.put(number, sent(pb.CODEC_FP32))
    assert shelf.missing(0).message == "revision 0 is gone; the newest is 2."
    assert shelf.missing(3).message == "revision 3 is still to come; the newest is 2."
    assert shelf.missing(3).newest == 2
    shelf.end("over", 2)
    assert shelf.missing(3).message == "over"


ROWS = 3_000
LAYOUT = Layout(
    (TensorSpec("w", (ROWS, 2), "float32"),),
    (FragmentSpec("f", (Box(0, (0, 0), (ROWS, 2)),)),),
)


def test_a_shard_in_very_many_spans_is_worked_on_in_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its spans are sorted and gathered where no other call waits for it."""
    at_work: list[threading.Thread] = []

    def watched(work: Any) -> Any:
        def noted(*args: Any) -> Any:
            at_work.append(threading.current_thread())
            return work(*args)

        return noted

    monkeypatch.setattr(staged, "check_tiling", watched(staged.check_tiling))
    monkeypatch.setattr(Sent, "read", watched(Sent.read))
    rules = RunSettings.model_validate({"codec": {"down": "fp32"}})
    columns = [Box(0, (0, column), (ROWS, 1)).to_proto() for column in (0, 1)]

    async def scenario() -> Float32:
        async with service(tmp_path, rules) as s:
            await s.members({"a": 1})
            await s.open(LAYOUT, "a")
            await asyncio.gather(
                *(
                    s.offer(VALUES[r::2][:ROWS], "a", rank=r, ranks=2, seq=1, boxes=[columns[r]])
                    for r in (0, 1)
                )
            )
            return (await s.pull(newest=True, boxes=[columns[1]]))[1]

    assert np.array_equal(asyncio.run(scenario()), VALUES[1::2][:ROWS])
    assert len(at_work) == 2
    assert threading.main_thread() not in at_work


def test_a_header_tells_how_long_ago_the_revision_was_published_where_that_is_known() -> None:
    whose, source = (
        Whose("instance", "r", 0),
        Sent(encode(VALUES[:8], pb.CODEC_FP32), pb.CODEC_FP32),
    )
    known = Published(Saved(), pb.CODEC_FP32, source, is_announced=True)
    assert known.header(8, whose, 102.5).published_ago_s == 0.0, "it is still to be"
    known.publish(100.0)
    assert known.header(8, whose, 102.5).published_ago_s == 2.5
    assert sent(pb.CODEC_BF16).header(8, whose, 102.5).published_ago_s == 0.0


@pytest.mark.parametrize("is_by_difference", [False, True])
def test_checksums_of_a_value_are_there_before_who_asks_as_others_did_before(
    is_by_difference: bool,
) -> None:
    """And its memory is not written anew before they have been taken."""
    value, shelf, is_free = sent(pb.CODEC_BF16), Shelf("revision"), threading.Event()
    difference = None
    if is_by_difference:
        difference = Difference(encode(VALUES, pb.CODEC_INT8))
    cuts = [(is_by_difference, 0, 1024), (is_by_difference, 2048, 512)]
    shelf.put(0, value)
    value.asked |= dict.fromkeys([*cuts, (is_by_difference, 4096, 1)])

    async def scenario() -> None:
        newer = Published(Saved(revision=1), pb.CODEC_BF16, value._source, difference)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(is_free.wait, 30)
            newer.sum_up(shelf.asked(1536), pool)
            moving = asyncio.create_task(newer.move(PLAIN))
            await asyncio.sleep(0)
            assert not moving.done() and not newer.sums
            is_free.set()
            await moving
            shelf.put(1, newer)
            assert set(newer.sums) == set(cuts)
            assert not shelf.asked(1536), "that others asked before is no question"
            with Loan(shelf, 1, newer, difference) as loan:
                for _, start, length in cuts:
                    spans = np.array([[start, length]])
                    data = await loan.read(spans, pool, pool)
                    assert loan.checksum(spans, data) == newer.sums[is_by_difference, start, length]
                    assert crc32c(data) == newer.sums[is_by_difference, start, length]
            assert shelf.asked(1536) == cuts

    asyncio.run(scenario())


def test_no_checksums_are_taken_of_what_a_value_has_not() -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(1) as pool:
            for value in (sent(pb.CODEC_BF16), Published(Saved(), pb.CODEC_BF16, PLAIN)):
                value.sum_up([(True, 0, 1024)], pool)
                await value.move(PLAIN)
                assert not value.sums

    asyncio.run(scenario())
