"""What a replica does with numbers, done once with a few of them: before it holds a lease.

A compiled loop's first call loads numba and the loop, which takes most of a second of CPU time, and
seconds where the loop was not kept; Python's lock is held for long meanwhile. In a first push
heartbeats would wait for that, and on a busy machine a short lease has run out by then. Codecs that
are changed while the run goes on are compiled when they are first used.
"""

from __future__ import annotations

import numpy as np
import torch

from syncline.core.feedback import has_feedback, loss_of
from syncline.gathering import Part, Window
from syncline_proto.codec import CODEC_BY_NAME, Follower, codec_of, encode
from syncline_proto.settings import CodecSettings


def rehearse(codec: CodecSettings) -> None:
    """Encode as pushes of such a run are encoded, and add a difference as its pulls do."""
    up, down = (codec_of(CODEC_BY_NAME[name]) for name in (codec.up, codec.down))
    count = up.grain + 1  # what is over goes through a window, also where all else goes straight
    values, bits = np.zeros(count, np.float32), np.zeros(count, np.uint16)
    for anchor in (values, bits):
        part = Part(torch.from_numpy(values), anchor)
        Window().gather([part], up, np.empty(up.size(count), np.uint8))
    if has_feedback(codec.up):
        loss_of(values, codec.up)
    if codec.down == "int8":
        spans = np.array([[0, count]], np.int64)
        Follower(bits, spans).follow(encode(values, down.number), np.empty_like(bits))
