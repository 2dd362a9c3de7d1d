"""What is drawn in every sort of message: numbers, names, boxes, and bytes that are spoilt."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from syncline_proto.v1 import sync_pb2 as pb

HUGE = st.sampled_from([2**31, 2**32 - 1, 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 130), HUGE)
NAMES = st.one_of(
    st.sampled_from(["", "a", "b", "c", "..", "a/b", "a\n", "a\x00", "A", "ü", "%2e", "x" * 64]),
    st.text(max_size=5),
    st.sampled_from(["a", "\x00", "ü", "\U0001f600"]).map(lambda character: character * (1 << 18)),
)


def spoil_boxes(draw: st.DrawFn, boxes: Any) -> None:
    """Another number in a box, or other boxes; ``boxes`` is the field of a message."""
    how = draw(st.sampled_from(["number", "drop", "twice", "turn", "split", "more", "strange"]))
    at = draw(st.integers(0, max(len(boxes) - 1, 0)))
    if how == "number" and boxes:
        numbers = draw(st.sampled_from([boxes[at].offsets, boxes[at].sizes]))
        if numbers:
            place = draw(st.integers(0, len(numbers) - 1))
            numbers[place] = draw(
                st.one_of(HUGE, st.integers(-2, 2).map(lambda by: (numbers[place] + by) % 2**64))
            )
        else:
            boxes[at].tensor = draw(st.sampled_from([0, 1, 2, 2**32 - 1]))
    elif how == "drop" and boxes:
        del boxes[at]
    elif how == "twice" and boxes:
        boxes.append(boxes[at])
    elif how == "turn":
        turned = [*boxes][::-1]
        del boxes[:]
        boxes.extend(turned)
    elif how == "split" and boxes and boxes[at].offsets and 1 < sum(boxes[at].sizes[:1]) < 2**40:
        rest = pb.Box()
        rest.CopyFrom(boxes[at])
        boxes[at].sizes[0] = cut = draw(st.integers(0, min(3, rest.sizes[0])))
        rest.offsets[0], rest.sizes[0] = (rest.offsets[0] + cut) % 2**64, rest.sizes[0] - cut
        kept = [*boxes[: at + 1], rest, *boxes[at + 1 :]]
        del boxes[:]
        boxes.extend(kept)
    elif how == "more":
        boxes.extend([pb.Box(tensor=draw(st.integers(0, 1)))] * draw(st.integers(1, 300)))
    else:
        numbers = st.lists(NUMBERS, max_size=9)
        boxes.append(
            pb.Box(tensor=draw(NUMBERS) % 2**32, offsets=draw(numbers), sizes=draw(numbers))
        )


def spoilt_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    """A message with a field that nobody knows, with a bit turned, cut short, or none at all."""
    how = draw(st.sampled_from(["unknown", "flip", "short", "garbage"]))
    if how == "unknown":  # field 1000, of two bytes
        return raw + b"\xc2\x3e\x02ab"
    if how == "flip" and raw:
        place = draw(st.integers(0, min(len(raw) - 1, 200)))
        return raw[:place] + bytes([raw[place] ^ 1 << draw(st.integers(0, 7))]) + raw[place + 1 :]
    if how == "short":
        return raw[: draw(st.integers(0, len(raw)))]
    return draw(st.binary(max_size=60))
