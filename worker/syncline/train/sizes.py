"""How large one inner step is, and whether the token budget and the data are large enough for it.

Imports no torch itself, so that a launcher can soon refuse a job, before it starts anybody; the
module of a factory may.
"""

from __future__ import annotations

from pathlib import Path

from syncline.data.cache import manifest_at
from syncline.data.shards import TokenShards
from syncline.data.sources import resolve
from syncline.data.split import TRAIN
from syncline.data.tokenizer import bpe_size_of
from syncline.train.config import JobConfig
from syncline.train.factory import OF_DATA, check_call, found
from syncline.train.sections import DataSection, TrainSection
from syncline_proto.errors import ConfigError


def tokens_of_step(data: DataSection, train: TrainSection) -> int:
    """Tokens that one rank reads in one inner step."""
    return train.micro_batch * train.accumulate * data.sequence_length


def check_budget(job: JobConfig, *, ranks: int, replicas: int) -> None:
    """Refuse a token budget that is less than one inner step of all replicas.

    Raises:
        ConfigError: it is.
    """
    budget, length = job.run.token_budget, job.data.sequence_length
    tokens = tokens_of_step(job.data, job.train) * ranks * replicas
    if budget is not None and tokens > budget:
        others = f" x {replicas} replicas" if replicas > 1 else ""
        raise ConfigError(
            f"run.token_budget is {budget} tokens and one inner step is {tokens} "
            f"({_factors(job, ranks)} x data.sequence_length {length}{others}); raise the budget, "
            "or lower train.micro_batch."
        )


def check_data(job: JobConfig, *, ranks: int) -> None:
    """Refuse what can be known of the data before any is prepared.

    Raises:
        DataError: there is no such source, its tokenizer cannot be trained, or the prepared folder
            cannot be read.
        ConfigError: the prepared folder holds too little, or there is no such factory, or it takes
            other arguments.
    """
    named = job.data.factory
    if named is not None:
        given = (TRAIN, job.data.sequence_length)
        check_call(found(named, OF_DATA), named, OF_DATA, *given, **job.data.arguments)
    elif job.data.url is not None:
        manifest_at(job.data.url)
    elif job.data.path is None:
        resolve(job.data.source or [])
        bpe_size_of(job.data.tokenizer)
    else:
        check_sequences(job, job.data.path, ranks=ranks)


def check_sequences(job: JobConfig, folder: Path, *, ranks: int) -> None:
    """Refuse an inner step of one replica that reads more than the prepared training set has.

    Raises:
        DataError: the folder cannot be read.
        ConfigError: it holds too little.
    """
    there = TokenShards.open(folder).num_sequences(job.data.sequence_length)
    check_enough(job, there, f"in {folder}", ranks=ranks)


def check_enough(job: JobConfig, there: int, where: str, *, ranks: int) -> None:
    """Refuse an inner step of one replica that reads more sequences than are ``there``.

    Raises:
        ConfigError: it does.
    """
    length, train = job.data.sequence_length, job.train
    wanted = train.micro_batch * train.accumulate * ranks
    if wanted > there:
        raise ConfigError(
            f"one inner step reads {wanted} sequences ({_factors(job, ranks)}) and the training "
            f"set {where} has {there} of {length} tokens; lower train.micro_batch or "
            "data.sequence_length, or prepare more text."
        )


def _factors(job: JobConfig, ranks: int) -> str:
    """What the number of sequences in one replica's inner step comes from."""
    factors = [f"train.micro_batch {job.train.micro_batch}"]
    if job.train.accumulate > 1:
        factors.append(f"train.accumulate {job.train.accumulate}")
    if ranks > 1:
        factors.append(f"{ranks} ranks")
    return " x ".join(factors)
