"""Error feedback: what a codec loses of one push goes into the next one.

    p = delta + e      is sent, as q = C(p)
    e = p - q          if it counts (KEEP)
    e = e              if it came late (RESTORE): delta stays progress, and is pushed again
    e = 0              if it does not count (CLEAR): what was discarded shall not come back

A codec without feedback leaves nothing behind (its e is 0, if the push counts), but takes along
what one with feedback owed before it: a run may change its codec at any time.

So what was accepted, what was discarded and the residual e add up to all deltas, each counted
once. Source: Karimireddy et al., arXiv 1901.09847; for progress of many steps and sparse payloads,
SparseLoCo (arXiv 2508.15706), whose residual decays where ours does not.

Pure arithmetic on flat fp32 arrays, and the memory of it. Never sends anything, and never judges:
the service's answers say what to do.
"""

from __future__ import annotations

import numpy as np

from syncline.core.agreement import Conclusion, Step
from syncline_proto.codec import CODEC_BY_NAME, Codec, Float32, codec_of
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb

GRAINS = 64
"""Of the codec, worked on at a time."""


class Residuals:
    """What codecs have lost of one rank's pushes, in one life of its replica; at first nothing.

    Invariants:
        Only a codec that is ``with_feedback`` leaves anything, one fp32 array for each fragment.
        All that is held of a fragment was lost in one epoch.
        An array that is held never changes; another takes its place.

    Of one thread, but for ``load``, which may come from another without a lock, as a push is made
    ready on its way out: while it is, nobody settles its fragment, nor sees an epoch of it, and who
    clears everything meanwhile has no use for what was pushed.
    """

    def __init__(self) -> None:
        self._held: dict[int, Float32] = {}
        self._epochs: dict[int, int] = {}

    def owes(self, fragment: int) -> bool:
        """Whether something is to be added to what is sent."""
        return fragment in self._held

    def load(self, fragment: int, delta: Float32) -> None:
        """Turn ``delta`` (fp32, flat) into what is to be sent of it, in place."""
        held = self._held.get(fragment)
        if held is not None:
            # What is not finite then, or was before, the service judges.
            with np.errstate(over="ignore", invalid="ignore"):
                delta += held

    def settle(
        self, fragment: int, action: pb.ResidualAction.ValueType, loss: Float32 | None = None
    ) -> None:
        """Take the answer to a push of any codec.

        ``loss`` is what KEEP keeps: ``loss_of`` the push, ours from now on; None, where its codec
        has no feedback.
        """
        if action == pb.RESIDUAL_ACTION_KEEP and loss is not None:
            self._held[fragment] = loss
        elif action != pb.RESIDUAL_ACTION_RESTORE:
            self._held.pop(fragment, None)

    def see_epoch(self, fragment: int, epoch: int) -> None:
        """Take the epoch of a new anchor: in another one nothing is owed of it any more.

        Epochs are of the service that owns the fragment, and only grow; an anchor of an older one
        was fetched while the service went back.
        """
        known = self._epochs.get(fragment, 0)
        if epoch != known:
            self._held.pop(fragment, None)
            self._epochs[fragment] = max(known, epoch)

    def clear(self) -> None:
        """Hold nothing."""
        self._held.clear()


def action_for(
    conclusion: Conclusion, told: pb.ResidualAction.ValueType
) -> pb.ResidualAction.ValueType:
    """What becomes of a residual, where the ranks conclude to merge or to rebase.

    That outweighs what this one was ``told``: who asked later may hear STALE of what others saw
    merged, and then its progress is not pushed again.
    """
    if conclusion.step is Step.REBASE:
        return pb.RESIDUAL_ACTION_RESTORE
    if conclusion.non_finite or told == pb.RESIDUAL_ACTION_CLEAR:
        return pb.RESIDUAL_ACTION_CLEAR
    return pb.RESIDUAL_ACTION_KEEP


def has_feedback(codec: CodecName) -> bool:
    """Whether what this codec loses is to be kept."""
    return _codec(codec).with_feedback


def loss_of(values: Float32, codec: CodecName) -> Float32:
    """What ``codec`` loses of ``values``: p - C(p), a new array (fp32, flat).

    Encoding is deterministic, so this is the loss of every payload that was sent of these values.
    """
    spoken, loss = _codec(codec), np.empty_like(values)
    step = GRAINS * spoken.grain
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, values.size, step):
            piece, lost = values[start : start + step], loss[start : start + step]
            spoken.decode_into(spoken.encode(piece), lost)
            np.subtract(piece, lost, out=lost)
    return loss


def _codec(name: CodecName) -> Codec:
    return codec_of(CODEC_BY_NAME[name])
