"""What a pull or an opening must be told, from docs/protocol.md: a second reading of 4, 6 and 10.

Shares nothing with the service but ``rules``' reading of boxes. The run stands at ``REVISION``,
without a synchronous phase; a and b hold leases. ``FRESH`` has no layout, and the same members.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from fuzz.requests import FRESH
from fuzz.rules import NAME, Wrong, places_of
from fuzz.streams import LAYOUT, REVISION, RUN
from syncline_proto.v1 import sync_pb2 as pb

MEMBERS = {"a": 1, "b": 1}
BOXES_MAX, NAMES_MAX, DIMENSIONS_MAX, NAME_MAX, FROZEN_MAX = 100_000, 100_000, 8, 1_024, 64
ELEMENTS_MAX = 1 << 26
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
DTYPES = {"float32", "bfloat16", "float16", "float64"}

WAITS = "waits"
"""In the place of a code: the call must be told nothing until its deadline."""


def parsed(message: Any, data: bytes) -> Any | None:
    """The message that the bytes are, if they are one, without fields that nobody knows."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    message.DiscardUnknownFields()
    return message


def pull_codes(asked: pb.PullRequest) -> set[str]:
    """What a pull may be told: any of these codes; it is served only if there are none."""
    codes = _run_codes(asked.run)
    known = asked.run == RUN
    if asked.run == FRESH or (known and asked.fragment >= len(LAYOUT.fragments)):
        codes.add("INVALID_REQUEST")
    if asked.replica and not NAME.fullmatch(asked.replica):
        codes.add("INVALID_REQUEST")
    if asked.incarnation < MEMBERS.get(asked.replica, 0):
        codes.add("LEASE_LOST")
    if asked.epoch not in (0, 1):
        codes.add("EPOCH_CHANGED")
    wanted = asked.WhichOneof("wanted")
    if wanted is None:
        codes.add("INVALID_REQUEST")
    if wanted == "gradient_step":
        codes.add("REVISION_GONE")
    if known and asked.fragment < len(LAYOUT.fragments):
        try:
            places(asked)
        except Wrong:
            codes.add("INVALID_REQUEST")
    if not codes and wanted == "revision" and asked.revision > REVISION:
        codes.add(WAITS)
    return codes


def places(asked: pb.PullRequest) -> npt.NDArray[np.int64]:
    """Where what a pull wants lies in the fragment's flat vector, element by element.

    Raises:
        Wrong: its boxes break a rule.
    """
    numel = LAYOUT.fragments[asked.fragment].numel
    if not asked.boxes:
        return np.arange(numel)
    found = places_of(asked)
    if found.size > numel:
        raise Wrong("more than the fragment")
    return found


def open_codes(asked: pb.OpenRunRequest) -> set[str]:
    """What an opening may be told: any of these codes; it is answered only if there are none."""
    codes = _run_codes(asked.run)
    if not asked.replica:
        return codes | ({"RUN_UNKNOWN"} if asked.run == FRESH else set())
    if not NAME.fullmatch(asked.replica):
        codes.add("INVALID_REQUEST")
    if asked.incarnation != MEMBERS.get(asked.replica):
        codes.add("LEASE_LOST")
    try:
        check_layout(asked.layout)
    except Wrong:
        codes.add("INVALID_REQUEST")
    if asked.run == RUN and fingerprint(asked.layout) != fingerprint(LAYOUT.to_proto()):
        codes.add("LAYOUT_MISMATCH")
    return codes


def check_layout(layout: pb.Layout) -> None:
    """Check a layout by counting how often each element is in a box.

    Raises:
        Wrong: it breaks a rule.
    """
    for tensor in layout.tensors:
        for name in (tensor.name, *tensor.aliases):
            _check_name(name)
        if tensor.dtype not in DTYPES or len(tensor.shape) > DIMENSIONS_MAX:
            raise Wrong("tensor")
    names = [name for tensor in layout.tensors for name in (tensor.name, *tensor.aliases)]
    if not len(names) == len(set(names)) <= NAMES_MAX:
        raise Wrong("names")
    if not layout.tensors or not layout.fragments or len(layout.frozen_sha256) > FROZEN_MAX:
        raise Wrong("nothing, or too much")
    for fragment in layout.fragments:
        _check_name(fragment.name)
        if len(fragment.boxes) > BOXES_MAX:
            raise Wrong("boxes")
        for box in fragment.boxes:
            _check_inside(box, layout.tensors)
        if not 0 < sum(math.prod(box.sizes) for box in fragment.boxes) <= ELEMENTS_MAX:
            raise Wrong("elements")
    every = list(chain.from_iterable(fragment.boxes for fragment in layout.fragments))
    for number, tensor in enumerate(layout.tensors):
        _check_cover(tensor, [box for box in every if box.tensor == number])


def fingerprint(layout: pb.Layout) -> str:
    """SHA-256 (hex) of the page's JSON text."""
    form = {
        "tensors": [[t.name, [*t.shape], t.dtype, [*t.aliases]] for t in layout.tensors],
        "fragments": [
            [f.name, [[b.tensor, [*b.offsets], [*b.sizes]] for b in f.boxes]]
            for f in layout.fragments
        ],
        "frozen_sha256": layout.frozen_sha256,
    }
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode()).hexdigest()


def _run_codes(run: str) -> set[str]:
    if not NAME.fullmatch(run):
        return {"INVALID_REQUEST"}
    return set() if run in (RUN, FRESH) else {"RUN_UNKNOWN"}


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_MAX or CONTROL.search(name):
        raise Wrong("name")


def _check_inside(box: pb.Box, tensors: Sequence[pb.Tensor]) -> None:
    if box.tensor >= len(tensors):
        raise Wrong("no tensor")
    shape = tensors[box.tensor].shape
    if not len(box.offsets) == len(box.sizes) == len(shape):
        raise Wrong("dimensions")
    if any(o + n > all_ for o, n, all_ in zip(box.offsets, box.sizes, shape, strict=True)):
        raise Wrong("outside")


def _check_cover(tensor: pb.Tensor, boxes: Sequence[pb.Box]) -> None:
    numel = math.prod(tensor.shape)
    if sum(math.prod(box.sizes) for box in boxes) != numel:
        raise Wrong("cover")
    if numel == 0:
        return
    counts = np.zeros(tuple(tensor.shape), np.uint8)
    for box in boxes:
        counts[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))] += 1
    if not (counts == 1).all():
        raise Wrong("cover")
