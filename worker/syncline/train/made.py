"""The job's model, whoever makes it: transformers, or a factory of the user's own."""

from __future__ import annotations

import torch
from torch import nn

from syncline.train.config import JobConfig
from syncline.train.factory import OF_MODEL, called, check_call, found
from syncline.train.folder import Vocabulary
from syncline.train.model import build_model, check_model
from syncline_proto.errors import ConfigError


def check_made(job: JobConfig, vocabulary: Vocabulary | None = None) -> int | None:
    """As ``check_model``; of a factory only that it can be called, so nobody knows a size.

    Raises:
        FileMissing, ConfigError, DataError: as ``check_model``, ``found`` and ``check_call``.
    """
    named = job.model.factory
    if named is None:
        return check_model(job, vocabulary)
    check_call(found(named, OF_MODEL), named, OF_MODEL, **job.model.arguments)
    return None


def made_model(job: JobConfig, vocabulary: Vocabulary) -> nn.Module:
    """The job's model, ready to train; equal on all ranks, as far as ``torch``'s seed makes it.

    Raises:
        FileMissing, ConfigError: as ``build_model``; a factory makes no module.
    """
    named = job.model.factory
    if named is None:
        return build_model(job, vocabulary)
    factory = found(named, OF_MODEL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.train.seed)
        model = called(factory, named, OF_MODEL, **job.model.arguments)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{OF_MODEL}: {named} returned {type(model).__name__}, not a torch.nn.Module."
        )
    return model.train()
