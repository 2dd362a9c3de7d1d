"""The numbers of a round: a model of one flat vector, what training adds, and what must come out.

Everything is known beforehand to everybody. What one participant adds in a round is one pattern,
laid end to end over the model and shifted for each participant and round, so whoever wants to
know the mean of all of them, or DiLoCo's outer step, computes it on a pattern. The length of the
pattern is a prime: what lands at the wrong place in the model is not mistaken for what belongs
there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

BLOCKS = 13
VOCABULARY_WIDTHS = 16
"""Rows of the embedding, and of the head, in widths."""

PATTERN = 1_000_003
SHIFT_OF_PARTICIPANT, SHIFT_OF_ROUND = 7_919, 104_729
START_STD, PROGRESS_STD = 0.02, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """DiLoCo's outer optimizer: SGD with Nesterov momentum in PyTorch's form (2311.08105)."""

    lr: float
    momentum: float


DILOCO = Outer(lr=0.7, momentum=0.9)
AVERAGE = Outer(lr=1.0, momentum=0.0)


def shapes(parameters: int) -> list[tuple[int, ...]]:
    """Shapes of a GPT of about so many parameters: embedding, blocks, last norm, head."""
    width = max(1, round((parameters / (12 * BLOCKS + 2 * VOCABULARY_WIDTHS)) ** 0.5))
    table = (VOCABULARY_WIDTHS * width, width)
    block = [(width,), (3 * width, width), (width, width), (width,)]
    block += [(4 * width, width), (width, 4 * width)]
    return [table, *(block * BLOCKS), (width,), table]


def sizes(parameters: int) -> list[int]:
    """How many values each tensor of ``shapes`` holds."""
    return [int(np.prod(shape)) for shape in shapes(parameters)]


class Trainee:
    """One participant's model, and what a round must make of it.

    ``flat`` is the model, float32; ``arrays`` are its tensors, views of ``flat``.
    """

    def __init__(
        self, parameters: int, participant: int, participants: int, outer: Outer = AVERAGE
    ) -> None:
        self._participant, self._participants, self._outer = participant, participants, outer
        self.round = 0
        self._noise = _pattern(1, PROGRESS_STD)
        self._velocity = np.zeros(PATTERN, np.float32)
        self._step = self._velocity
        self.flat: Float32 = np.resize(_pattern(0, START_STD), sum(sizes(parameters)))
        self._anchor = self.flat.copy()
        ends = np.cumsum(sizes(parameters))[:-1]
        pairs = zip(np.split(self.flat, ends), shapes(parameters), strict=True)
        self.arrays: list[Float32] = [part.reshape(shape) for part, shape in pairs]

    def before_last(self, rounds: int) -> None:
        """Be where ``rounds`` exact rounds begin the last of them: what it makes can be looked at.

        For who meets a round without having been in those before it.
        """
        before = np.zeros(PATTERN, np.float32)
        for _ in range(rounds):
            before += self._step
            self._plan()
        self._add(before)
        np.copyto(self._anchor, self.flat)

    def train(self) -> None:
        """Make the inner steps of the next round, and know what the round must make of them."""
        np.copyto(self._anchor, self.flat)
        own = self._progress(self._participant)
        self._plan()
        self._add(own)

    def off(self) -> float:
        """How far the model is from what the round should have made, over what it should have
        moved: near 1 where it stayed as it was, or kept one participant's own progress."""
        missed = moved = 0.0
        for where, step in _pieces(self.flat.size, self._step):
            wrong = self.flat[where] - self._anchor[where] - step
            missed += float(np.vdot(wrong, wrong))
            moved += float(np.vdot(step, step))
        return (missed / moved) ** 0.5 if np.isfinite(missed) else float("inf")

    def _add(self, pattern: Float32) -> None:
        for where, part in _pieces(self.flat.size, pattern):
            self.flat[where] += part

    def _plan(self) -> None:
        everyone = [self._progress(one) for one in range(self._participants)]
        mean = np.mean(everyone, axis=0, dtype=np.float32)
        lr, momentum = np.float32(self._outer.lr), np.float32(self._outer.momentum)
        self._velocity = momentum * self._velocity + mean
        self._step = lr * (mean + momentum * self._velocity)
        self.round += 1

    def _progress(self, participant: int) -> Float32:
        shift = participant * SHIFT_OF_PARTICIPANT + self.round * SHIFT_OF_ROUND
        return np.roll(self._noise, shift)


def _pattern(seed: int, std: float) -> Float32:
    return np.float32(std) * np.random.default_rng(seed).standard_normal(PATTERN, np.float32)


def _pieces(size: int, pattern: Float32) -> list[tuple[slice, Float32]]:
    """The places of a flat vector, and the part of the pattern that lies there."""
    starts = range(0, size, PATTERN)
    return [(slice(at, min(at + PATTERN, size)), pattern[: size - at]) for at in starts]
