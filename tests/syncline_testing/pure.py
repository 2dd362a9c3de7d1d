"""One fragment without any I/O: core decisions and arithmetic, driven by hand.

The same calls in the same order as the runner makes them, so that laws can be tested in
microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import Float32, codec_of, encode
from syncline_proto.settings import RunSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import merge
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Closing, Judgement, Kind, WholePush


def payload_of(values: Float32) -> merge.Payload:
    """A whole fragment as one shard, fp32."""
    whole = Extent.of(np.array([[0, values.size]], np.int64))
    return merge.Payload(pb.CODEC_FP32, (bytes(encode(values, pb.CODEC_FP32)),), whole)


def norm_of(values: Float32) -> float:
    """||values|| as a service takes it of a push in fp32.

    To the last bit: by the very loop, since compilers add in another order in each.
    """
    codec = codec_of(pb.CODEC_FP32)
    kept = np.empty(codec.size(values.size), np.uint8)
    return math.sqrt(codec.copy(encode(values, codec.number), kept, values.size))


def whole_push(replica: str, **given: Any) -> WholePush:
    """A pseudo-gradient of one inner step and one token, but for what is given."""
    usual: dict[str, Any] = {
        "incarnation": 1,
        "seq": 1,
        "epoch": 1,
        "kind": Kind.PSEUDO_GRADIENT,
        "base": 0,
        "gradient_step": 0,
        "norm": 1.0,
        "inner_steps": 1,
        "tokens": 1,
        "first_step": 0,
        "last_step": 1,
    }
    return WholePush(replica=replica, **usual | given)


@dataclass
class PureFragment:
    """A fragment that starts at revision 0 with ``parameters``."""

    settings: RunSettings
    parameters: npt.NDArray[Any]
    members: Mapping[str, int]
    now_s: float = 0.0
    seqs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = Fragment(self.settings)
        self.parameters = self.parameters.astype(np.float32)
        self.momentum = np.zeros_like(self.parameters)
        self.accumulator = np.zeros_like(self.parameters)
        self.core.adopt(self.now_s, self.members, self.settings, True)
        first = next(iter(self.members))
        self.core.judge(self.now_s, self._push(first, Kind.PARAMETERS, self.parameters, None))
        closed_by = self.core.due(self.now_s)
        assert closed_by is not None
        self.core.close(closed_by)

    def _push(
        self, replica: str, kind: Kind, values: Float32, base: int | None, steps: int = 1
    ) -> WholePush:
        self.seqs[replica] = self.seqs.get(replica, 0) + 1
        with np.errstate(over="ignore", invalid="ignore"):
            norm = norm_of(values)
        return whole_push(
            replica,
            incarnation=self.members[replica],
            seq=self.seqs[replica],
            kind=kind,
            base=base,
            norm=norm,
            inner_steps=steps,
            tokens=steps,
            last_step=steps,
        )

    def push(
        self, replica: str, values: Float32, steps: int = 1, base: int | None = None
    ) -> Judgement:
        """Push a pseudo-gradient, against the current revision or ``base``, and fold it as told."""
        values = values.astype(np.float32)
        base = self.core.saved.revision if base is None else base
        judgement = self.core.judge(
            self.now_s, self._push(replica, Kind.PSEUDO_GRADIENT, values, base, steps)
        )
        if judgement.weight > 0.0:
            weight, rescale = judgement.weight, judgement.rescale
            merge.fold(self.accumulator, [payload_of(values)], weight, rescale)
        return judgement

    def close(self) -> Closing:
        """Close the round, which must be due, and take the outer step."""
        closed_by = self.core.due(self.now_s)
        assert closed_by is not None, "the round is not due"
        closing = self.core.close(closed_by)
        if closing.total_weight > 0.0:
            outcome = merge.outer_step(
                self.parameters,
                self.momentum,
                self.accumulator,
                closing.total_weight,
                closing.outer,
                closing.carry,
            )
            if outcome.clip:
                self.parameters = self.accumulator
        self.accumulator = np.zeros_like(self.parameters)
        return closing

    def round(self, pushes: Mapping[str, Float32], order: Sequence[str] | None = None) -> Closing:
        """One round: every push, in this order."""
        for replica in order or list(pushes):
            self.push(replica, pushes[replica])
        return self.close()


def shares(closing: Closing) -> dict[str, float]:
    """Replica -> its part of the merge."""
    return {c.replica: c.weight for c in closing.saved.contributions}
