"""Held-out loss: the same sequences every time, dealt over the ranks.

It reads parameters as they are; whether those are a replica's own or the merged ones is the
caller's affair (``Replica.unsynced`` and ``Replica.finish``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from syncline.data import SequenceStream, bits_per_byte
from syncline.fsdp import reshard_all
from syncline.train.config import JobConfig
from syncline.train.inputs import collated
from syncline.train.losses import LossOf
from syncline.train.ranks import RankGroup
from syncline.train.sets import Sets

SAMPLE_SEED = 1
"""Fixed: losses of any two runs on the same data can be compared, whatever their seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One evaluation."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """NaN for data whose bytes nobody counted."""


class Evaluator:
    """A fixed sample of the held-out split."""

    def __init__(self, loss_of: LossOf, sets: Sets, job: JobConfig, ranks: RankGroup) -> None:
        self._loss_of, self._ranks = loss_of, ranks
        self._dataset = sets.held_out
        self._bytes_per_token = sets.held_out_bytes_per_token
        self._micro_batch = job.train.micro_batch
        sample = SequenceStream(len(self._dataset), SAMPLE_SEED, 0, 1)
        self._indices, _ = sample.next(min(job.evaluate.sequences, len(self._dataset)))

    @torch.no_grad()
    def __call__(self) -> HeldOut:
        """The model's mean loss over the sample, the same on every rank. All ranks must call it."""
        model = self._loss_of.model
        was_training = model.training
        model.eval()
        total, count = torch.zeros((), device=self._ranks.device), 0
        stride = self._micro_batch * self._ranks.count
        for start in range(0, len(self._indices), stride):
            mine = self._indices[start + self._ranks.index : start + stride : self._ranks.count]
            # FSDP2 gathers in every forward pass: a rank without sequences goes along unheard.
            batch = collated(self._dataset, mine if len(mine) else self._indices[:1],
                             self._ranks.device)  # fmt: skip
            total += self._loss_of(batch).float() * len(mine)
            count += len(mine)
        model.train(was_training)
        reshard_all(model)  # there was no backward pass to free what FSDP2 gathered
        loss_sum, sequences = self._ranks.sum([float(total), float(count)])
        loss = loss_sum / sequences
        return HeldOut(loss=loss, bits_per_byte=bits_if_counted(loss, self._bytes_per_token))


def bits_if_counted(loss: float, bytes_per_token: float) -> float:
    """Bits a byte of a loss in nats per token; NaN for data whose bytes nobody counted."""
    return bits_per_byte(loss, bytes_per_token) if bytes_per_token else math.nan
