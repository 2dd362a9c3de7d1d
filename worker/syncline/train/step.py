"""One inner step: forward and backward over the micro-batches, and whether to take what came out.

The ranks of a replica settle here, once a step and before the optimizer moves, what they must not
differ in: the loss and the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from syncline.finite import gradient_norm
from syncline.optim import WSAM
from syncline.setbacks import Setbacks
from syncline.train.inputs import Batch
from syncline.train.losses import LossOf
from syncline.train.optim import clip_gradients, set_lr
from syncline.train.ranks import RankGroup
from syncline.train.sections import TrainSection
from syncline.voice import voice

WHAT_TO_DO = "lower optimizer.lr, or raise optimizer.warmup_tokens."
"""In a job, about losses that are not finite."""


class Gradients(Enum):
    """By which a step may be taken."""

    NONE = auto()
    """It is called off."""
    OWN = auto()
    """As the backward pass has left them."""
    REPLACED = auto()
    """By everybody's mean, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What came of one inner step, the same on every rank."""

    loss: float
    """Mean over all micro-batches of all ranks, nats per token."""
    grad_norm: float
    """Before clipping; in the synchronous phase of the mean over all replicas."""
    lr: float
    taken: bool
    """False when nothing was changed: not finite, or there was no call for it any more."""


class InnerStep:
    """Takes inner steps."""

    def __init__(
        self,
        loss_of: LossOf,
        optimizer: torch.optim.Optimizer,
        train: TrainSection,
        ranks: RankGroup,
        setbacks: Setbacks,
    ) -> None:
        self._setbacks = setbacks
        self._loss_of, self._model = loss_of, loss_of.model
        self._optimizer = optimizer
        self._train = train
        self._ranks = ranks

    def __call__(
        self,
        next_batch: Callable[[], Batch],
        *,
        lr: Callable[[], float],
        count: Callable[[], None],
        before_update: Callable[[], Gradients],
    ) -> StepReport:
        """Take one step, unless its loss or gradient is not finite.

        Rank 0's ``lr`` counts; it is asked after the backward pass, when all that this step's
        forward merged is known. ``count`` is called for a step whose every gradient is finite;
        where there is one only, before ``before_update``. That runs just before clipping and the
        optimizer's step; it may replace the gradients by finite ones, or call the step off, on all
        ranks alike. A GPU is waited for once for each gradient, when it has been told all of it.

        Raises:
            TrainingDiverged: too many steps were not finite.
        """
        optimizer = self._optimizer
        two = isinstance(optimizer, WSAM)
        read = (next_batch() for _ in range(self._train.accumulate))
        batches = list(read) if two else read
        mean, norm, rate = self._summed(self._backward(batches), lr)
        finite = math.isfinite(mean) and math.isfinite(norm)
        if finite and not two:
            count()
        by = before_update() if finite else Gradients.NONE
        taken = by is not Gradients.NONE
        if taken:
            if by is Gradients.REPLACED:
                norm = self._summed()[1]
            self._clip(norm)
            set_lr(optimizer, rate)
        if taken and two:
            second = self._second(optimizer, batches)
            finite = taken = all(map(math.isfinite, second))
            if finite:
                count()
            else:
                optimizer.abandon()
                mean, norm = second
        if taken:
            optimizer.step()
        optimizer.zero_grad()
        report = StepReport(loss=mean, grad_norm=norm, lr=rate, taken=taken)
        if finite:
            self._setbacks.none()
        else:
            say = voice(0 if self._ranks.first else 1)
            self._setbacks.skipped(say, loss=mean, grad_norm=norm)
        return report

    def _backward(self, batches: Iterable[Batch]) -> Tensor:
        """Take the gradient of one step's micro-batches; this rank's share of their mean loss.

        Of no dimension, where the model is; nothing has waited for it.
        """
        loss = torch.zeros((), device=self._ranks.device)
        for batch in batches:
            part = self._loss_of(batch) / self._train.accumulate
            part.backward()
            loss += part.detach().float()
        return loss / self._ranks.count

    def _summed(
        self, loss: Tensor | float = 0.0, lr: Callable[[], float] = lambda: 0.0
    ) -> tuple[float, float, float]:
        """Of all ranks: the loss, the gradient's norm, and rank 0's ``lr``, which is asked last."""
        norm = float(gradient_norm(self._optimizer))
        told = [float(loss), norm * norm, lr() if self._ranks.first else 0.0]
        mean, square, rate = self._ranks.sum(told)
        return mean, math.sqrt(square), rate

    def _clip(self, norm: float) -> None:
        if self._train.clip is not None:
            clip_gradients(self._model, self._train.clip, norm)

    def _second(self, optimizer: WSAM, batches: Iterable[Batch]) -> tuple[float, float]:
        """Take the gradient at a point nearby, and stay there; its loss and norm."""
        optimizer.perturb()
        loss, norm, _ = self._summed(self._backward(batches))
        self._clip(norm)
        return loss, norm
