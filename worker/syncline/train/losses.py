"""The loss of a batch, from whatever model there is: one of transformers, or of the user's own.

What a model of a factory raises in its forward pass, or returns in place of a loss, is told in one
sentence. Most of it is found before anybody joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import nn

from syncline.faults import trace_if_asked
from syncline.fsdp import reshard_all
from syncline.train.config import JobConfig
from syncline.train.factory import OF_MODEL, said
from syncline.train.inputs import Batch, Sequences, collated
from syncline.train.ranks import RankGroup
from syncline_proto.errors import ConfigError, SynclineError

AROUND = ("syncline.hooks", "torch.distributed.fsdp", "torch.distributed.distributed_c10d")
"""Modules that take part in a forward pass and are no model's: their faults are not the user's."""


SHOWN = "; SYNCLINE_DEBUG=1 shows where"


class LossOf:
    """A model's loss of a batch, a mean over its predictions."""

    def __init__(self, model: nn.Module, factory: str | None = None) -> None:
        """``factory`` is the job's, where the model is of one."""
        self.model, self._factory = model, factory

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The loss of the batch, a scalar with its graph.

        Raises:
            ConfigError: a model of a factory raised, or returned no scalar loss.
            SynclineError: what hooks of the forward pass raise.
        """
        if self._factory is None:
            return self.model(**batch).loss
        with self._telling(batch):
            return self._checked(self.model(**batch), batch)

    def try_on(self, batch: Batch) -> None:
        """See that there is a loss, without a trace in the model. All ranks must call it.

        Raises:
            ConfigError: as a call does.
        """
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad(), self._telling(batch):
            float(self(batch))  # an index out of range fails on a GPU only now
        self.model.train(was_training)
        reshard_all(self.model)

    @contextmanager
    def _telling(self, batch: Batch) -> Iterator[None]:
        try:
            yield
        except (SynclineError, torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:
            if _is_around(error):
                raise
            trace_if_asked()
            raise self._wrong(f"raised {said(error)}", batch, SHOWN) from error

    def _checked(self, made: Any, batch: Batch) -> torch.Tensor:
        loss = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
        if loss is None:
            raise self._wrong(f"returned {type(made).__name__} without a loss", batch)
        if not isinstance(loss, torch.Tensor):
            raise self._wrong(f"returned a loss that is {type(loss).__name__}, no tensor", batch)
        if loss.ndim:
            raise self._wrong(f"returned a loss of shape {list(loss.shape)}", batch)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise self._wrong("returned a loss without a gradient", batch)
        return loss

    def _wrong(self, how: str, batch: Batch, shown: str = "") -> ConfigError:
        return ConfigError(
            f"{OF_MODEL}: the model of {self._factory} {how}; its forward is given "
            f"{', '.join(f'{name}=' for name in batch)}, and returns an object or a dict with a "
            f"scalar loss{shown}."
        )


def loss_of(model: nn.Module, job: JobConfig, data: Sequences, ranks: RankGroup) -> LossOf:
    """The job's loss; a model of a factory is tried on the first rows of the data. Collective.

    Raises:
        ConfigError: it raised, or returned no scalar loss.
    """
    made = LossOf(model, job.model.factory)
    if job.model.factory is not None:
        # As many as in training: what is compiled for one row is compiled anew for more.
        made.try_on(collated(data, np.arange(job.train.micro_batch), ranks.device))
    return made


def _is_around(error: Exception) -> bool:
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(name.startswith(AROUND) for name in names)
