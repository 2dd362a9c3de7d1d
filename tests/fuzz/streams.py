"""What is sent: pushes of one or two ranks, whole or spoilt, as the bytes of their messages.

Each starts as a valid push of the layout below, in any codec, and is then changed in up to three
places: a field of a header, a number of a box, a byte of a chunk, the order of messages, the end.
Some changes leave it valid; which, ``rules`` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.drawn import NAMES, NUMBERS, spoil_boxes, spoilt_bytes
from syncline_proto.codec import Float32, chunks, codec_of, crc32c, encode
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.v1 import sync_pb2 as pb

RUN = "run"
CUT, ROWS, COLUMNS = 100, 120, 50
LAYOUT = Layout(
    (TensorSpec("w", (ROWS, COLUMNS), "float32"), TensorSpec("s", (), "float32")),
    (
        FragmentSpec("f0", (Box(0, (0, 0), (CUT, COLUMNS)), Box(1, (), ()))),
        FragmentSpec("f1", (Box(0, (CUT, 0), (ROWS - CUT, COLUMNS)),)),
    ),
)
"""The first fragment is in more than one chunk of every codec."""

REVISION = 1
"""Where the run stands: the only base that is not late. There is one before it, too."""

BASES = (None, 0, REVISION + 1, REVISION + 2, 1 << 40)
LATE = st.sampled_from(
    [*[{}] * 16, *({"base_revision": base} for base in BASES), {"epoch": 0}, {"epoch": 2}]
)
"""In what all ranks of a push agree: most are in time. With None they name no base."""

ENDINGS = ("end", "cut", "still")
"""The client half-closes; cancels; or sends nothing more and waits."""

UNWRITTEN = (
    (pb.CODEC_INT8, 3, 0xBC), (pb.CODEC_INT8, 4, 0x80),
    (pb.CODEC_INT4, 1, 0xBE), (pb.CODEC_INT4, 2, 0x78), (pb.CODEC_INT4, 2, 0x87),
    (pb.CODEC_TOPK, 1, 0xBF), (pb.CODEC_TOPK, 4, 0xFF),
)  # fmt: skip
"""A codec, a place in its payload, and a byte that none writes there: a scale that is negative, the
least integer there is, an index after which another is no larger."""

SMALL_FIELDS = ("fragment", "rank", "ranks", "kind", "codec")
COUNTS = (
    "epoch", "incarnation", "seq", "base_revision", "gradient_step", "inner_steps", "tokens",
    "first_step", "last_step", "phase",
)  # fmt: skip
OPTIONAL = ("base_revision", "phase")
ANY = ("epoch", "incarnation", "phase")
"""Counts that may be as large as they can: they are compared, and never summed."""

Sequences = tuple[tuple[int, int, int], ...]
"""Of leased data: (epoch, start, stop)."""

READ: tuple[Sequences, ...] = ((), ((0, 0, 4),), ((0, 0, 4), (0, 5, 9), (2, 1, 2)))
"""What all ranks of a push have read: in order, and with gaps."""
MANY: Sequences = tuple((0, 2 * i, 2 * i + 1) for i in range(257))
"""One more than may be."""
UNREAD: tuple[Sequences, ...] = (
    ((0, 4, 4),), ((0, 5, 4),), ((0, 0, 4), (0, 4, 9)), ((1, 0, 4), (0, 5, 9)), ((0, 0, 2**53),),
    ((2**53, 0, 1),), MANY,
)  # fmt: skip
"""None, or backwards; that touch, or are out of order; over what JSON keeps; too many."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What one call sends, and how it ends."""

    messages: tuple[bytes, ...]
    ending: str
    is_compressed: bool = False

    def __repr__(self) -> str:
        shown = ", ".join(f"{len(m)}:{m[:40].hex()}" for m in self.messages)
        return f"Stream({self.ending}: {shown})"


@dataclass(slots=True)
class Draft:
    """A stream that can still be changed: the first message is its header."""

    header: pb.PushHeader
    parts: list[pb.PushRequest | bytes]
    ending: str = "end"

    @property
    def chunked(self) -> list[int]:
        """The places of chunks that are chunks still."""
        return [
            at
            for at, part in enumerate(self.parts)
            if isinstance(part, pb.PushRequest) and part.WhichOneof("part") == "chunk"
        ]

    def finished(self) -> Stream:
        messages = [p if isinstance(p, bytes) else p.SerializeToString() for p in self.parts]
        return Stream(tuple(messages), self.ending)


def chunk(data: bytes, crc_off: int = 0) -> pb.PushRequest:
    return pb.PushRequest(chunk=pb.Chunk(data=data, crc32c=crc32c(data) ^ crc_off))


def header(fragment: int, codec: pb.Codec.ValueType, **given: Any) -> pb.PushHeader:
    usual: dict[str, Any] = {
        "run": RUN, "epoch": 1, "replica": "a", "incarnation": 1, "seq": 5, "ranks": 1,
        "kind": pb.PUSH_KIND_PSEUDO_GRADIENT, "base_revision": REVISION, "inner_steps": 1,
        "tokens": 1,
    }  # fmt: skip
    return pb.PushHeader(fragment=fragment, codec=codec, **usual | given)


def ranges_of(sequences: Sequences) -> list[pb.DataRange]:
    return [pb.DataRange(epoch=epoch, start=start, stop=stop) for epoch, start, stop in sequences]


def draft(values: Float32, boxes: list[pb.Box], grains: int, head: pb.PushHeader) -> Draft:
    """A valid stream, in chunks of so many grains."""
    codec = codec_of(head.codec)
    head.boxes.extend(boxes)
    payload = b"".join(c.data for c in chunks(encode(values, head.codec), head.codec))
    step = codec.size(grains * codec.grain)
    parts = [chunk(payload[at : at + step]) for at in range(0, len(payload), step)]
    return Draft(head, [pb.PushRequest(header=head), *parts])


@st.composite
def drafts(draw: st.DrawFn) -> list[Draft]:
    """All ranks of one push, valid unless it is late."""
    fragment, codec = draw(st.integers(0, 1)), pb.Codec.ValueType(draw(st.integers(1, 5)))
    grains, alike = (
        draw(st.integers(1, 3)),
        draw(LATE) | {"data": ranges_of(draw(st.sampled_from(READ)))},
    )
    boxes = [box.to_proto() for box in LAYOUT.fragments[fragment].boxes]
    numel = LAYOUT.fragments[fragment].numel
    random = np.random.default_rng(draw(st.integers(0, 9)))
    values = (random.standard_normal(numel) / 10).astype(np.float32)
    if draw(st.booleans()):
        return [draft(values, boxes, grains, header(fragment, codec, **alike))]
    first, rows = boxes[0], boxes[0].sizes[0]
    cut = draw(st.integers(0, rows))
    begin = first.offsets[0]
    upper = pb.Box(tensor=0, offsets=[begin, 0], sizes=[cut, COLUMNS])
    lower = pb.Box(tensor=0, offsets=[begin + cut, 0], sizes=[rows - cut, COLUMNS])
    at = cut * COLUMNS
    parts = ((values[:at], [upper]), (values[at:], [lower, *boxes[1:]]))
    return [
        draft(mine, held, grains, header(fragment, codec, rank=rank, ranks=2, **alike))
        for rank, (mine, held) in enumerate(parts)
    ]


def spoil_field(draw: st.DrawFn, one: Draft) -> None:
    """Another value in a field of the header."""
    name = draw(st.sampled_from(["run", "replica", *SMALL_FIELDS, *COUNTS]))
    if name in ("run", "replica"):
        value: Any = draw(NAMES)
    elif name in SMALL_FIELDS:
        value = draw(st.one_of(st.integers(0, 6), st.sampled_from([2**16, 2**16 + 1, 2**31 - 1])))
    else:
        value = draw(NUMBERS)
    if name in OPTIONAL and draw(st.booleans()):
        one.header.ClearField(name)
    else:
        setattr(one.header, name, value)
    _renew(one)


def spoil_header_boxes(draw: st.DrawFn, one: Draft) -> None:
    """Another number in a box of the header, or other boxes."""
    spoil_boxes(draw, one.header.boxes)
    _renew(one)


def spoil_data(draw: st.DrawFn, one: Draft) -> None:
    """Other sequences that were read: as they may be, or not."""
    numbers = st.one_of(st.integers(0, 9), st.sampled_from([2**53 - 1, 2**53, 2**64 - 1]))
    drawn = st.lists(st.tuples(numbers, numbers, numbers), max_size=3).map(tuple)
    del one.header.data[:]
    one.header.data.extend(ranges_of(draw(st.one_of(st.sampled_from([*READ, *UNREAD]), drawn))))
    _renew(one)


def spoil_chunk(draw: st.DrawFn, one: Draft) -> None:
    """Other bytes or another place of a chunk, with a checksum that is right or not."""
    places = one.chunked
    if not places:
        return
    at = draw(st.sampled_from(places))
    data = one.parts[at].chunk.data  # pyright: ignore[reportAttributeAccessIssue]
    how = draw(st.sampled_from(["byte", "bytes", "shorter", "longer", "crc", "drop", "twice",
        "swap", "join", "empty", "big", "off the grain"]))  # fmt: skip
    if how in ("byte", "bytes"):
        spoilt = bytearray(data)
        for _ in range(1 if how == "byte" else 20):
            if spoilt:
                spoilt[draw(st.integers(0, len(spoilt) - 1))] = draw(
                    st.one_of(st.sampled_from([0, 0x7F, 0x80, 0xFF]), st.integers(0, 255))
                )
        right = draw(st.booleans())
        one.parts[at] = chunk(bytes(spoilt), 0 if right else crc32c(data) ^ crc32c(bytes(spoilt)))
    elif how == "shorter":
        one.parts[at] = chunk(data[: -draw(st.integers(1, 9))])
    elif how == "longer":
        one.parts[at] = chunk(data + bytes(draw(st.sampled_from([1, 2, 4, 260, 4096, 9000]))))
    elif how == "crc":
        one.parts[at] = chunk(data, draw(st.integers(1, 2**32 - 1)))
    elif how == "drop":
        del one.parts[at]
    elif how == "twice":
        one.parts.insert(at, one.parts[at])
    elif how == "swap":
        other = draw(st.sampled_from(places))
        one.parts[at], one.parts[other] = one.parts[other], one.parts[at]
    elif how == "join":
        rest = b"".join(p.chunk.data for p in one.parts if not isinstance(p, bytes))
        one.parts = [part for i, part in enumerate(one.parts) if i not in places]
        one.parts.append(chunk(rest))
    elif how == "empty":
        one.parts.insert(draw(st.integers(0, len(one.parts))), chunk(b""))
    elif how == "big":
        one.parts[at] = chunk(data + bytes(draw(st.sampled_from([1 << 20, 2 << 20]))))
    else:
        cut = draw(st.integers(0, len(data)))
        one.parts[at : at + 1] = [chunk(data[:cut]), chunk(data[cut:])]


def spoil_messages(draw: st.DrawFn, one: Draft) -> None:
    """Messages in another order, twice, not at all, of both parts, or no messages."""
    at = draw(st.integers(0, len(one.parts)))
    how = draw(st.sampled_from(["header", "none", *["bytes"] * 3, "drop", "move", "both"]))
    if how == "header":
        one.parts.insert(at, pb.PushRequest(header=one.header))
    elif how == "none":
        one.parts.insert(at, pb.PushRequest())
    elif one.parts:
        at = min(at, len(one.parts) - 1)
        part = one.parts[at]
        raw = part if isinstance(part, bytes) else part.SerializeToString()
        if how == "bytes":
            one.parts[at] = spoilt_bytes(draw, raw)
        elif how == "drop":
            del one.parts[at]
        elif how == "move":
            one.parts.insert(draw(st.integers(0, len(one.parts) - 1)), one.parts.pop(at))
        elif how == "both":  # of a oneof the last counts; two of the same are merged
            other = draw(st.sampled_from(one.parts))
            one.parts[at] = raw + (other if isinstance(other, bytes) else other.SerializeToString())


def spoil_ending(draw: st.DrawFn, one: Draft) -> None:
    """Half a stream: it stops somewhere, and is cut, stands still or is said to be all."""
    del one.parts[draw(st.integers(0, len(one.parts))) :]
    one.ending = draw(st.sampled_from(ENDINGS))


SPOILERS: tuple[Callable[[st.DrawFn, Draft], None], ...] = (
    spoil_field, spoil_header_boxes, spoil_data, spoil_chunk, spoil_messages, spoil_ending,
)  # fmt: skip


@st.composite
def pushes(draw: st.DrawFn) -> tuple[Stream, ...]:
    """The streams of one push's ranks, spoilt in up to three places."""
    made = draw(drafts())
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        draw(st.sampled_from(SPOILERS))(draw, draw(st.sampled_from(made)))
    return tuple(one.finished() for one in made)


def _renew(one: Draft) -> None:
    """Put the changed header where it stands."""
    for at, part in enumerate(one.parts):
        if isinstance(part, pb.PushRequest) and part.WhichOneof("part") == "header":
            one.parts[at] = pb.PushRequest(header=one.header)


def broken_rules() -> Iterator[tuple[Stream, ...]]:
    """One valid push of two ranks for each rule of headers and chunks, with just that one broken.

    What is drawn meets most rules seldom; these meet every one, each time.
    """
    both = {
        "run": "other", "replica": "", "incarnation": 2, "epoch": 2, "codec": 6,
        "base_revision": REVISION + 1, "inner_steps": 0, "seq": 0, "ranks": 0, "fragment": 2,
        "first_step": 9,
    }  # fmt: skip
    both |= {
        f"{name} over the bound": (1 << 40) + 1 for name in COUNTS if name not in ("epoch", "phase")
    }
    both |= {"base_revision of the past": REVISION - 1, "base_revision of none": None}
    both |= {"epoch of the past": 0}
    for name, value in both.items():
        field = name.split()[0]
        given = {"last_step": (1 << 40) + 1} if field == "first_step" and value != 9 else {}
        yield _two_ranks({**given, field: value}, {**given, field: value})
    for sequences in UNREAD:
        yield _two_ranks({"data": sequences}, {"data": sequences})
    later = {
        "epoch": 2, "codec": 1, "base_revision": REVISION + 1, "gradient_step": 1, "inner_steps": 2,
        "tokens": 2, "first_step": 1, "last_step": 3, "ranks": 3, "rank": 0, "phase": 0,
        "data": READ[1],
    }  # fmt: skip
    for name, value in later.items():
        yield _two_ranks({"last_step": 2}, {"last_step": 2, name: value})
    yield _two_ranks({"phase": 1}, {"phase": 2})
    yield _two_ranks({}, {"rank": 2})
    yield _two_ranks({"kind": 4}, {"kind": 4}, codec=pb.CODEC_FP32)
    gradient = {"kind": pb.PUSH_KIND_GRADIENT, "gradient_step": 1}
    yield _two_ranks(gradient, gradient)
    first, second = _two_ranks({"rank": 1}, {})
    yield Stream((*first.messages, first.messages[-1]), "end"), second  # one takes its place
    yield _two_ranks({}, {}, shift=-1)
    yield _two_ranks({}, {}, shift=1)
    first, second = _two_ranks({}, {})
    *before, last = first.messages
    data = pb.PushRequest.FromString(last).chunk.data
    for wrong in (chunk(data, 1), chunk(data + b"\0"), chunk(data + data), chunk(data[:-2])):
        yield Stream((*before, wrong.SerializeToString()), "end"), second
    yield Stream((*first.messages, last), "end"), second
    yield Stream((*first.messages, before[0]), "end"), second
    yield Stream(tuple(before), "end"), second
    whole = b"".join(pb.PushRequest.FromString(part).chunk.data for part in first.messages[1:])
    off = (chunk(whole[:-4]), chunk(whole[-4:]))  # the first of them is off the grain
    yield Stream((before[0], *(part.SerializeToString() for part in off)), "end"), second
    for codec, at, byte in UNWRITTEN:
        first, second = _two_ranks({}, {}, codec=codec)
        *before, last = first.messages
        data = bytearray(pb.PushRequest.FromString(last).chunk.data)
        data[at] = byte
        yield Stream((*before, chunk(bytes(data)).SerializeToString()), "end"), second


def _two_ranks(
    first: dict[str, Any],
    second: dict[str, Any],
    shift: int = 0,
    codec: pb.Codec.ValueType = pb.CODEC_BF16,
) -> tuple[Stream, ...]:
    """Both halves of a push; the second's rows begin ``shift`` rows late, and are as many."""
    boxes = [box.to_proto() for box in LAYOUT.fragments[0].boxes]
    rows, begin = boxes[0].sizes[0], boxes[0].offsets[0]
    cut = rows // 2
    upper = pb.Box(tensor=0, offsets=[begin, 0], sizes=[cut - max(shift, 0), COLUMNS])
    rest = rows - cut - max(shift, 0)
    lower = pb.Box(tensor=0, offsets=[begin + cut + shift, 0], sizes=[rest, COLUMNS])
    ranks = []
    for rank, (held, given) in enumerate((([upper], first), ([lower, *boxes[1:]], second))):
        count = sum(int(np.prod(box.sizes)) for box in held)
        named = header(0, codec, rank=rank, ranks=2)
        one = draft(np.ones(count, np.float32), held, 1, named)
        for name, value in given.items():
            if name == "base_revision" and value is None:
                one.header.ClearField(name)
            elif name == "data":
                one.header.data.extend(ranges_of(value))
            else:
                setattr(one.header, name, value)
        _renew(one)
        ranks.append(one.finished())
    return tuple(ranks)
