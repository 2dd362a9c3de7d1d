"""What a replica does with numbers, done once with a few of them: before it holds a lease.

A compiled loop's first call loads numba and the loop, which takes most of a second of CPU time, and
seconds where the loop was not kept; Python's lock is held for long meanwhile. In a first push
heartbeats would wait for that, and on a busy machine a short lease has run out by then. A codec may
be changed while the run goes on, so all are rehearsed: those that are kept cost next to nothing.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch

from syncline.change import Change
from syncline.core.feedback import has_feedback, loss_of
from syncline.gathering import Part, Window
from syncline_proto.codec import CODEC_BY_NAME, Follower, codec_of, encode
from syncline_proto.settings import CodecName


def rehearse() -> None:
    """Encode as pushes are encoded under any codec, and add a difference as pulls do."""
    for name in get_args(CodecName):
        _push(name)
    _follow()


def _push(name: CodecName) -> None:
    codec = codec_of(CODEC_BY_NAME[name])
    count = codec.grain + 1  # what is over goes through a window, also where all else goes straight
    values = np.zeros(count, np.float32)
    for anchor in (values, np.zeros(count, np.uint16)):
        part = Part(torch.from_numpy(values), anchor)
        Window().gather([part], codec, np.empty(codec.size(count), np.uint8))
    if has_feedback(name):
        loss_of(values, name)


def _follow() -> None:
    number = CODEC_BY_NAME["int8"]
    count = codec_of(number).grain + 1
    bits, spans = np.zeros(count, np.uint16), np.array([[0, count]], np.int64)
    difference = encode(np.zeros(count, np.float32), number)
    change, follower = Change(bits, spans, [difference]), Follower(bits, spans)
    follower.check(difference)
    change.made(np.empty_like(bits))
    change.carry([np.empty(count, np.float32)])
