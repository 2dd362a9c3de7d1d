"""A published value as an int8 difference to the one before: made once, cut, and added by everyone.

    Q  = int8, in blocks of 256 along the fragment's flat vector, of  theta - P
    P' = bf16(P + what Q decodes to)

P are published values, always bf16; theta is the service's own. The service takes its next
difference to P', so what int8 and bf16 lost of one revision is in the next one: error feedback.
Both sides add with the code below, or with docs/protocol.md in hand, and hold the same bits.

A shard may cut blocks. Its payload, in every chunk anew, is an element a byte, and the scale of the
element's block before the first one and wherever an element lies in another block than the one
before it. Blocks that are whole are then as they are in CODEC_INT8.

Pure, as all codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import difference_loops
from syncline_proto.codec.base import Bytes, Float32, UInt8, UInt16, bf16_bits, bf16_values
from syncline_proto.codec.difference_loops import Count
from syncline_proto.codec.int8_loops import BLOCK, BLOCK_BYTES, SCALE_BYTES
from syncline_proto.codec.integers import Int8, check_int8
from syncline_proto.errors import InvalidRequest
from syncline_proto.spans import Spans
from syncline_proto.v1 import sync_pb2 as pb

_INT8 = Int8(number=pb.CODEC_INT8, name="int8")

DIFFERENCE_ELEMENTS = 204 * 1024
"""Of our own chunks: under 1 MiB even if each element lay in another block."""

SPAN_LEAST = 16
"""Elements of a shard's spans, on average, from which on a difference is sent: at most 3/4 of the
value's bytes, and the spans, which are gone through one by one, are no more than that is worth."""


def advance(held: UInt16, values: Float32, unread: memoryview | None = None) -> memoryview | None:
    """Take the published value as near to ``values`` as a difference can, and return that.

    ``held`` is bf16, as bits [n], and becomes the new published value; ``values`` are fp32 [n].
    The difference is a payload of n elements in CODEC_INT8. None: it, or what it leads to, is not
    finite; then the new value is ``values`` rounded to bf16, which only whole can be told.
    ``unread`` is an earlier difference of as many elements that nobody reads: it is written over.
    """
    return advance_by(lambda out: difference_loops.advance(held, values, out), held, values, unread)


def advance_by(
    write: Callable[[UInt8], bool], held: UInt16, values: Float32, unread: memoryview | None
) -> memoryview | None:
    """As ``advance``, by a loop that does more than ``difference_loops.advance``: ``write``.

    ``values`` need not be what they are to be before it has run.
    """
    out = np.empty(_INT8.size(held.size), np.uint8) if unread is None else np.asarray(unread)
    if not write(out):
        publish(held, values)
        return None
    return out.data


def publish(held: UInt16, values: Float32) -> None:
    """Write ``values``, fp32 [n], rounded to bf16, into ``held``: a value without a difference."""
    bf16_bits(values, held)


def is_worth_it(span_count: int, elements: int) -> bool:
    """Whether a shard in so many spans is to be sent as a difference: see ``SPAN_LEAST``."""
    return SPAN_LEAST * span_count <= elements


def cut(difference: memoryview, spans: Spans) -> Bytes:
    """A chunk: what ``advance`` returned, of these spans [k, 2] of the fragment's flat vector.

    Where that is one part of it, it is that, and no copy: use it before the difference is written
    over (``advance``'s ``unread``).
    """
    ranges: list[tuple[int, int]] = []

    def take(at: int, size: int) -> None:
        if ranges and ranges[-1][1] == at:
            ranges[-1] = (ranges[-1][0], at + size)
        else:
            ranges.append((at, at + size))

    last = -1
    for start, length in spans.tolist():
        end = start + length
        while start < end:
            block, within = divmod(start, BLOCK)
            at, whole = block * BLOCK_BYTES, (end - start) // BLOCK
            if whole and not within and block != last:
                take(at, whole * BLOCK_BYTES)
                last, start = block + whole - 1, start + whole * BLOCK
                continue
            if block != last:
                take(at, SCALE_BYTES)
            count = min(BLOCK - within, end - start)
            take(at + SCALE_BYTES + within, count)
            last, start = block, start + count
    parts = [difference[begin:end] for begin, end in ranges]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def carry(
    chunks: Iterable[Bytes],
    held: UInt16,
    spans: Spans,
    outs: Sequence[Float32],
    done: Count,
) -> None:
    """Take ``held`` to the next value, where it lies, and write that to ``outs``, in one pass.

    ``chunks`` are all of a difference, which a ``Follower`` has checked; ``held`` and ``spans`` are
    as it takes them. ``outs`` are flat, fp32, and one after another as long as ``held``. ``done``
    is int64 [1], 0 at first: where this is broken off, by a signal say, it may be called again, and
    adds nothing twice.
    """
    edges = np.cumsum([0, *(out.size for out in outs)])
    follower, number = Follower(held, _split(spans, edges)), 0
    ends, its = edges[1:].tolist(), 0
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        for at, count, where in follower.parts(chunk):
            while at >= ends[its]:
                its += 1
            begin, end = at - ends[its], at - ends[its] + count  # from the end of its ``out``
            out, into = outs[its][begin : end or None], held[at : at + count]
            if number >= done[0]:
                difference_loops.carry(data, *where, into, out, done)
            else:
                bf16_values(into, out)
            number += 1


def _split(spans: Spans, edges: npt.NDArray[np.int64]) -> Spans:
    """The same elements in spans that end at these places of the shard, too."""
    ends = np.cumsum(spans[:, 1])
    begins = ends - spans[:, 1]
    places = np.unique(np.concatenate([begins, ends, edges]))
    inside = np.searchsorted(begins, places[:-1], side="right") - 1
    split = np.empty((len(inside), 2), np.int64)
    split[:, 0] = spans[inside, 0] + places[:-1] - begins[inside]
    split[:, 1] = places[1:] - places[:-1]
    return split


class Place(NamedTuple):
    """Where elements of one span lie in a chunk: the end of a block, whole blocks, one's beginning.

    Each may be missing. Behind the first each block has its scale before it.
    """

    scale: int
    """Of the block whose end it is; any number where there is none."""
    first: int
    """Of that block's elements; where there are none, the next block."""
    head: int
    """How many elements of it."""


class Follower:
    """Who holds a published value, and takes it to the next one as the chunks come in."""

    def __init__(self, held: UInt16, spans: Spans) -> None:
        """``held`` is bf16, as bits, of the shard that lies in ``spans``, in payload order."""
        self._held, self._spans = held, spans
        self._span, self._used = 0, 0  # the current one, and how much of it is done
        self._filled = 0

    def follow(self, data: Bytes, out: UInt16) -> int:
        """Write the next elements of the new value, as bits, to the start of ``out``; their number.

        Raises:
            InvalidRequest: the chunk holds more than is left, no whole elements, or what no
                encoder writes.
        """
        payload, filled = np.frombuffer(data, np.uint8), 0
        for at, count, where in self.parts(data):
            held, into = self._held[at : at + count], out[filled : filled + count]
            check_int8(difference_loops.follow(payload, *where, held, into))
            filled += count
        return filled

    def check(self, data: Bytes) -> int:
        """See that ``follow`` would take the next elements, which then count as taken.

        Their number; raises as that does.
        """
        payload, filled = np.frombuffer(data, np.uint8), 0
        for _, count, where in self.parts(data):
            check_int8(difference_loops.check(payload, *where, count))
            filled += count
        return filled

    def parts(self, data: Bytes) -> Iterator[tuple[int, int, Place]]:
        """The next elements, cut where a span ends: where in the shard, how many, and where here.

        Raises:
            InvalidRequest: the chunk holds more than is left, or no whole elements.
        """
        spans, size, at, last, scale = self._spans, len(data), 0, -1, 0
        while at < size:
            if self._span == len(spans):
                raise InvalidRequest("chunk.data: more elements came than were asked for.")
            start, length = spans[self._span].tolist()
            start, left, head = start + self._used, length - self._used, 0
            block, within = divmod(start, BLOCK)
            if within or block == last:
                if block != last:
                    scale, at = at, at + SCALE_BYTES
                head = _elements(BLOCK - within, left, size - at)
            begin, count, where = self._filled, head, Place(scale, at, head)
            at += head
            if whole := min((left - count) // BLOCK, (size - at) // BLOCK_BYTES):
                at, count = at + whole * BLOCK_BYTES, count + whole * BLOCK
                scale = at - BLOCK_BYTES
            if left > count and size > at:
                scale, at = at, at + SCALE_BYTES
                rest = _elements(BLOCK, left - count, size - at)
                at, count = at + rest, count + rest
            last = (start + count - 1) // BLOCK
            self._filled += count
            self._used += count
            if self._used == length:
                self._span, self._used = self._span + 1, 0
            yield begin, count, where


def _elements(*most: int) -> int:
    """So many elements stand behind a scale.

    Raises:
        InvalidRequest: there is none.
    """
    count = min(most)
    if count <= 0:
        raise InvalidRequest("chunk.data: a scale stands there without an element.")
    return count
