"""Noise for progress, as the push of a replica of one rank or two; and what its codec has lost.

Sends nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from chaos.plan import RUN, Plan
from chaos.reference import Float32
from syncline.core.feedback import Residuals, has_feedback, loss_of
from syncline_proto.codec import CODEC_BY_NAME, encode
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import rank_header


@dataclass(frozen=True, slots=True)
class Push:
    """The same bytes and words, however often it is sent; seq and base are still to be told."""

    work: int
    header: pb.PushHeader
    payloads: list[bytes]
    ranks: list[pb.PushHeader]
    progress: Float32 | None = None
    """None: first parameters are offered."""
    owed: Float32 | None = None
    """What was added to it."""
    loss: Float32 | None = None
    """What is owed if it counts."""


def offered(work: int, name: str, random: np.random.Generator, plan: Plan, fragment: int) -> Push:
    """First parameters."""
    header = _header(name, plan, fragment)
    header.kind, header.codec = pb.PUSH_KIND_PARAMETERS, pb.CODEC_FP32
    values = _noise(random, plan, fragment)
    return Push(work, header, *_by_rank(header, values, _cuts(random, name, values.size)))


def progressed(
    work: int,
    name: str,
    random: np.random.Generator,
    plan: Plan,
    fragment: int,
    residuals: Residuals,
) -> Push:
    """Some steps: mostly alike; some are so loud that weights are rescaled, or do not count."""
    values = _noise(random, plan, fragment)
    loud = random.choice([1.0, 25.0, 500.0, np.nan], p=[0.94, 0.03, 0.02, 0.01])
    values *= np.float32(loud * np.exp(0.3 * random.standard_normal()))
    header, codec = _header(name, plan, fragment), plan.codecs[random.integers(len(plan.codecs))]
    header.kind, header.codec = pb.PUSH_KIND_PSEUDO_GRADIENT, CODEC_BY_NAME[codec]
    header.inner_steps = int(random.integers(1, 2 * plan.settings.sync_every))
    header.tokens = int(random.integers(1, 1 << 20))
    cuts = _cuts(random, name, values.size)
    owed = np.zeros_like(values)
    residuals.load(fragment, owed)
    sent = values.copy()
    residuals.load(fragment, sent)
    loss = None
    if has_feedback(codec):
        loss = np.concatenate([loss_of(sent[a:b], codec) for a, b in cuts])
    return Push(
        work,
        header,
        *_by_rank(header, sent, cuts),
        values,
        owed if residuals.owes(fragment) else None,
        loss,
    )


def _header(name: str, plan: Plan, fragment: int) -> pb.PushHeader:
    box = plan.layout.fragments[fragment].boxes[0].to_proto()
    return pb.PushHeader(run=RUN, epoch=1, replica=name, fragment=fragment, ranks=1, boxes=[box])


def _noise(random: np.random.Generator, plan: Plan, fragment: int) -> Float32:
    numel = plan.layout.fragments[fragment].numel
    return np.float32(0.02) * random.standard_normal(numel, np.float32)


def _cuts(random: np.random.Generator, name: str, size: int) -> list[tuple[int, int]]:
    """By rank: the first replica has two."""
    edges = [0, size]
    if name.endswith("-0"):
        edges.insert(1, int(random.integers(1, size)))
    return list(itertools.pairwise(edges))


def _by_rank(
    header: pb.PushHeader, values: Float32, cuts: list[tuple[int, int]]
) -> tuple[list[bytes], list[pb.PushHeader]]:
    payloads = [bytes(encode(values[a:b], header.codec)) for a, b in cuts]
    ranks = [rank_header(header, rank, len(cuts), a, b) for rank, (a, b) in enumerate(cuts)]
    return payloads, ranks
