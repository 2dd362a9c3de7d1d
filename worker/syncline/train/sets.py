"""What a job trains on and is evaluated by, whoever makes it: a prepared folder, or a factory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from syncline.data import TokenDataset
from syncline.data.manifest import read_manifest
from syncline.train.config import JobConfig
from syncline.train.factory import OF_DATA, asked, called, found
from syncline.train.folder import NO_TOKENIZER, Vocabulary
from syncline.train.inputs import HELD_OUT, TRAIN, Sequences, prepared_by_all
from syncline.train.sizes import check_enough, check_sequences
from syncline_proto.errors import ConfigError

CONTENT_CHARACTERS = 128
"""What the control plane takes of a name."""


class Sets(NamedTuple):
    train: Sequences
    held_out: Sequences
    vocabulary: Vocabulary
    bytes_per_token: float
    """Of the training split; 0 where nobody counted."""
    held_out_bytes_per_token: float
    content: str = ""
    """Names what is trained on: equal names, equal sequences."""


def sets_of(job: JobConfig, *, ranks: int) -> Sets:
    """The job's data. Collective, where it has to be prepared.

    Raises:
        DataError: the data cannot be read.
        ConfigError: it is too little for one inner step, or a factory makes something else.
    """
    if job.data.factory is not None:
        return _made(job, job.data.factory, ranks)
    folder, length = prepared_by_all(job.data), job.data.sequence_length
    check_sequences(job, folder, ranks=ranks)
    manifest = read_manifest(folder)
    split = manifest.splits[TRAIN]
    held_out = TokenDataset.open(folder, HELD_OUT, length=length)
    return Sets(
        TokenDataset.open(folder, TRAIN, length=length),
        held_out,
        Vocabulary(manifest.tokenizer.vocab_size, manifest.tokenizer.eos_id),
        bytes_per_token=split.bytes / max(1, split.tokens),
        held_out_bytes_per_token=held_out.shards.bytes_per_token,
        content=f"{manifest.fingerprint}:{length}",
    )


def _made(job: JobConfig, named: str, ranks: int) -> Sets:
    factory, length = found(named, OF_DATA), job.data.sequence_length

    def split(name: str) -> Sequences:
        made = called(factory, named, OF_DATA, name, length, **job.data.arguments)
        return _Rows(made, f"{OF_DATA}: {named}, asked for {name!r},", length)

    train = split(TRAIN)
    check_enough(job, len(train), f"of {named}", ranks=ranks)
    content = f"{named}:{length}{_told_apart(job.data.arguments)}"[-CONTENT_CHARACTERS:]
    return Sets(train, split(HELD_OUT), NO_TOKENIZER, 0.0, 0.0, content)


def _told_apart(arguments: Mapping[str, Any]) -> str:
    """A hash of what a factory is given, for two of the same name; "" of nothing."""
    if not arguments:
        return ""
    text = json.dumps(arguments, sort_keys=True, default=str)  # TOML has dates, JSON has none
    return ":" + hashlib.sha256(text.encode()).hexdigest()[:16]


class _Rows:
    """A dataset of the user's own, whose rows are looked at as they come."""

    def __init__(self, made: Any, who: str, length: int) -> None:
        """Check the first row; ``who`` begins the sentence of an error.

        Raises:
            ConfigError: it is no map-style dataset of sequences of this length.
        """
        self._made, self._who = made, who
        if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
            raise ConfigError(
                f"{who} returned {type(made).__name__}, and not a dataset with len() and [number]."
            )
        self._count = asked(f"{who} returned a dataset whose len()", lambda: len(made))
        if not self._count:
            raise ConfigError(f"{who} returned a dataset without a sequence.")
        row = self._row(0)
        ids = row.get("input_ids")
        if ids is None or tuple(ids.shape) != (length,):
            shape = "none" if ids is None else f"shape {list(ids.shape)}"
            raise ConfigError(
                f"{who} has rows whose input_ids are {shape}; data.sequence_length is {length}, "
                "which is what the factory is asked for."
            )
        self._shapes = _shapes_of(row)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Mapping[str, torch.Tensor]:
        """The dataset's row of this number.

        Raises:
            ConfigError: the dataset raised, or the row is not like the first one.
        """
        row = self._row(index)
        if (shapes := _shapes_of(row)) != self._shapes:
            raise ConfigError(
                f"{self._who} has rows of different shapes: {self._shapes} in row 0, and {shapes} "
                f"in row {index}."
            )
        return row

    def _row(self, index: int) -> Mapping[str, torch.Tensor]:
        row = asked(f"{self._who} returned a dataset whose row {index}", lambda: self._made[index])
        if not isinstance(row, Mapping) or not all(
            isinstance(value, torch.Tensor) for value in row.values()
        ):
            raise ConfigError(
                f"{self._who} has rows that are no dict of tensors, such as input_ids."
            )
        return row


def _shapes_of(row: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {key: list(value.shape) for key, value in row.items()}
