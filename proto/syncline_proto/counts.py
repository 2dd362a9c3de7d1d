"""How much a layout, a push or a pull may name: quick to see, before any memory is taken for it.

What a few bytes on the wire name can be much to hold. Pure; whether it is right is ``layout.py``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

TENSORS_MAX = 100_000
"""Their other names are counted with them."""
FRAGMENTS_MAX = 100_000
BOXES_MAX = 100_000
"""Boxes in one fragment, or in one push."""

DIMENSIONS_MAX = 8
NAME_MAX = 1_024
"""Characters of a tensor's or fragment's name."""

CORNERS_MAX = 1 << 19
"""Of all boxes of tensors that are in several boxes; a box has 2 to the number of dimensions."""


def check_counts(message: pb.Layout) -> None:
    """Check how many tensors, names, dimensions, fragments and boxes a layout has.

    Raises:
        InvalidRequest: they are none, or too many.
    """
    if not 0 < len(message.tensors) <= TENSORS_MAX:
        raise InvalidRequest(f"layout.tensors: {len(message.tensors)} is not 1 to {TENSORS_MAX}.")
    if not 0 < len(message.fragments) <= FRAGMENTS_MAX:
        raise InvalidRequest(
            f"layout.fragments: {len(message.fragments)} is not 1 to {FRAGMENTS_MAX}."
        )
    names = len(message.tensors) + sum(len(t.aliases) for t in message.tensors)
    if names > TENSORS_MAX:
        raise InvalidRequest(
            f"layout.tensors: {names} names, aliases included, is more than {TENSORS_MAX}."
        )
    if any(len(t.shape) > DIMENSIONS_MAX for t in message.tensors):
        raise InvalidRequest(f"layout.tensors: one has more than {DIMENSIONS_MAX} dimensions.")
    boxes = sum(len(f.boxes) for f in message.fragments)
    # A tensor is in one box, or each of its boxes has a corner at least.
    if boxes > TENSORS_MAX + CORNERS_MAX:
        raise InvalidRequest(
            f"layout.fragments: {boxes} boxes is more than {TENSORS_MAX + CORNERS_MAX}."
        )


def check_boxes(messages: Sequence[pb.Box]) -> None:
    """Check how many boxes there are, and that each has as many offsets as sizes, and few.

    Raises:
        InvalidRequest: a rule is broken.
    """
    if len(messages) > BOXES_MAX:
        raise InvalidRequest(f"boxes: {len(messages)} is more than {BOXES_MAX}.")
    for message in messages:
        if len(message.sizes) > DIMENSIONS_MAX:
            raise InvalidRequest(
                f"boxes: tensor {message.tensor}: more than {DIMENSIONS_MAX} dimensions."
            )
        if len(message.offsets) != len(message.sizes):
            raise InvalidRequest(
                f"boxes: tensor {message.tensor}: offsets and sizes differ in number."
            )
