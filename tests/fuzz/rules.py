"""What of some streams counts, from docs/protocol.md: a second reading of sections 4, 5 and 7.

Shares the codecs' arithmetic and the checksum with the service, and nothing else. The run stands at
``REVISION``, without a synchronous phase; a and b have pushed, and no round is open.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from fuzz.streams import ANY, COUNTS, LAYOUT, REVISION, RUN, Stream
from syncline_proto.codec import Float32, codec_of, crc32c, decode
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

AGREED = (
    "epoch", "kind", "ranks", "codec", "base_revision", "gradient_step", "inner_steps", "tokens",
    "first_step", "last_step", "phase",
)  # fmt: skip

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
COUNT_MAX = 1 << 40


class Wrong(Exception):
    """A rule is broken."""


class NotNow(Wrong):
    """No rule is broken, but the run does not take this now: its whole push is told so."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stream that breaks no rule by itself."""

    header: pb.PushHeader
    places: npt.NDArray[np.int64]
    """Of its elements in the fragment's flat vector."""
    values: Float32
    ending: str


@dataclass(frozen=True, slots=True)
class Counted:
    """A push that enters a round: whose, and what the service must take it for."""

    fragment: int
    replica: str
    values: Float32

    @property
    def is_anomalous(self) -> bool:
        with np.errstate(invalid="ignore"):
            return not np.linalg.norm(self.values.astype(np.float64)) <= 1e20


def part_of(stream: Stream) -> Part:
    """Read a stream as far as it goes.

    Raises:
        Wrong: it breaks a rule, or is not whole, or not for now.
    """
    part = read(stream)
    is_delta = part.header.kind == pb.PUSH_KIND_PSEUDO_GRADIENT
    if not is_delta or (part.header.epoch, part.header.base_revision) != (1, REVISION):
        raise NotNow
    return part


def read(stream: Stream) -> Part:
    """Read a stream, be it late or not.

    Raises:
        Wrong: it breaks a rule, or is not whole.
    """
    try:
        messages = [pb.PushRequest.FromString(data) for data in stream.messages]
    except DecodeError as error:
        raise Wrong("no message") from error
    if not messages or messages[0].WhichOneof("part") != "header":
        raise Wrong("no header")
    if any(m.WhichOneof("part") != "chunk" for m in messages[1:]):
        raise Wrong("not a chunk")
    header = messages[0].header
    check_header(header)
    # The offer was the first of b.
    if header.seq <= {"a": 1, "b": 2}.get(header.replica, COUNT_MAX) or header.incarnation != 1:
        raise Wrong("known before, or no member's")
    places = places_of(header)
    values = payload(header, [m.chunk for m in messages[1:]], len(places))
    return Part(header, places, values, stream.ending)


def check_header(header: pb.PushHeader) -> None:
    """Check what a header says, but for its boxes, and for who sends it and when."""
    is_delta = header.kind == pb.PUSH_KIND_PSEUDO_GRADIENT
    rules = {
        "run": header.run == RUN,
        "replica": NAME.fullmatch(header.replica),
        "fragment": header.fragment < len(LAYOUT.fragments),
        "ranks": header.rank < header.ranks <= 65_536,
        "kind": 1 <= header.kind <= 3,
        "codec": 1 <= header.codec <= (5 if is_delta else 1),
        "base_revision": header.HasField("base_revision") or not is_delta,
        "inner_steps": header.inner_steps >= 1 or not is_delta,
        "gradient_step": header.gradient_step >= 1 or header.kind != pb.PUSH_KIND_GRADIENT,
        "steps": header.first_step <= header.last_step,
        "seq": header.seq >= 1,
        "data": are_apart(header.data),
    }
    sizes = {name: getattr(header, name) <= COUNT_MAX for name in COUNTS if name not in ANY}
    broken = [name for name, holds in (*sizes.items(), *rules.items()) if not holds]
    if broken:
        raise Wrong(broken)


def are_apart(sequences: Sequence[pb.DataRange]) -> bool:
    """Whether ranges of leased data are few, in order, and with gaps in between."""
    ends = [(-1, 0), *((one.epoch, one.stop) for one in sequences)]
    follow = [(one.epoch, one.start) > end for one, end in zip(sequences, ends, strict=False)]
    whole = [one.start < one.stop for one in sequences]
    small = [max(one.epoch, one.stop) < 1 << 53 for one in sequences]
    return len(sequences) <= 256 and all((*follow, *whole, *small))


def places_of(header: pb.PushHeader | pb.PullRequest) -> npt.NDArray[np.int64]:
    """Where the header's boxes lie in the fragment's flat vector, element by element."""
    found: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    start, homes = 0, list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]()
    for home in LAYOUT.fragments[header.fragment].boxes:
        homes.append((start, home.tensor, home.offsets, home.sizes))
        start += home.numel
    for box in header.boxes:
        for begin, tensor, offsets, sizes in homes:
            dims = len(offsets)
            if (box.tensor, len(box.offsets), len(box.sizes)) != (tensor, dims, dims):
                continue
            low = [b - a for a, b in zip(offsets, box.offsets, strict=True)]
            high = [b + n for b, n in zip(low, box.sizes, strict=True)]
            if all(b >= 0 and e <= n for b, e, n in zip(low, high, sizes, strict=True)):
                numbered = begin + np.arange(np.prod(sizes, dtype=int)).reshape(sizes)
                cut = tuple(slice(b, e) for b, e in zip(low, high, strict=True))
                found.append(numbered[cut].reshape(-1))
                break
        else:
            raise Wrong("boxes")
    return np.concatenate(found)


def payload(header: pb.PushHeader, chunks: Sequence[pb.Chunk], elements: int) -> Float32:
    """What the chunks of a shard decode to."""
    codec = codec_of(header.codec)
    left = codec.size(elements)
    grain = codec.size(codec.grain)
    for chunk in chunks:
        size = len(chunk.data)
        if not 0 < size <= min(2 << 20, left) or (size != left and size % grain):
            raise Wrong("length")
        if crc32c(chunk.data) != chunk.crc32c:
            raise Wrong("crc32c")
        left -= size
    if left:
        raise Wrong("half")
    try:
        return decode(b"".join(c.data for c in chunks), header.codec, elements)
    except InvalidRequest as error:
        raise Wrong("data") from error


def counted(streams: Sequence[Stream]) -> list[Counted] | None:
    """What enters a round of these streams, sent at the same time; None if their order decides."""
    groups: dict[tuple[int, str, int, int], list[Part]] = defaultdict(list)
    begun: list[tuple[int, str]] = []
    for stream in streams:
        header = header_of(stream)
        if header is not None:
            begun.append((header.fragment, header.replica))
        try:
            part = part_of(stream)
        except Wrong:
            continue
        h = part.header
        groups[h.fragment, h.replica, h.incarnation, h.seq].append(part)
    parts = [part for group in groups.values() for part in group]
    if any(part.ending != "end" for part in parts):
        return None  # all of it has come, and the service may take its last breath for the end
    # A stream that is refused may leave its mark in the push that another one makes whole.
    if parts and len(begun) > len(parts) or len(groups) > 1:
        return [] if all(lacks_ranks(g) for g in groups.values()) else None
    return [one for group in groups.values() for one in judged(group)]


def judged(group: Sequence[Part]) -> list[Counted]:
    """The push that a group of ranks makes; nothing if it is not whole, or they disagree."""
    head = group[0].header
    if lacks_ranks(group):
        return []
    if any(agreed(part.header) != agreed(head) for part in group):
        return []
    numel = LAYOUT.fragments[head.fragment].numel
    places = np.concatenate([part.places for part in group])
    if not np.array_equal(np.sort(places), np.arange(numel)):
        return []
    values = np.empty(numel, np.float32)
    values[places] = np.concatenate([part.values for part in group])
    return [Counted(head.fragment, head.replica, values)]


def agreed(header: pb.PushHeader) -> list[Any]:
    """What all ranks of a push say alike."""
    said = [getattr(header, name) for name in AGREED]
    return [*said, header.HasField("base_revision"), header.HasField("phase"), *header.data]


def is_whole(streams: Sequence[Stream]) -> bool:
    """Whether these are all ranks of one push that breaks no rule: each is told a verdict."""
    try:
        parts = [read(stream) for stream in streams]
    except Wrong:
        return False
    keys = {(h.fragment, h.replica, h.incarnation, h.seq) for h in (part.header for part in parts)}
    return len(keys) == 1 and all(p.ending == "end" for p in parts) and bool(judged(parts))


def lacks_ranks(group: Sequence[Part]) -> bool:
    """Whether these are not all ranks of the push."""
    return len({part.header.rank for part in group}) != group[0].header.ranks


def header_of(stream: Stream) -> pb.PushHeader | None:
    """The header that the service meets, whatever follows it."""
    try:
        first = pb.PushRequest.FromString(stream.messages[0]) if stream.messages else None
    except DecodeError:
        return None
    return first.header if first is not None and first.WhichOneof("part") == "header" else None


def may_be_judged(stream: Stream) -> bool:
    """Whether a stream may be told a verdict: its header breaks no rule, whoever sends it."""
    header = header_of(stream)
    if header is None:
        return False
    try:
        check_header(header)
        places_of(header)
    except Wrong:
        return False
    return True


def must_be_answered(stream: Stream) -> bool:
    """Whether a stream must be refused at once, whatever others send."""
    if stream.ending != "end":
        return False
    try:
        part_of(stream)
    except NotNow:
        header = header_of(stream)
        return header is not None and header.ranks == 1
    except Wrong:
        return True
    return False
