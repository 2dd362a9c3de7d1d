"""What this rank reads: its own micro-batches of what its replica reads of the data.

That is what the control plane leases to the replica, or a slice of each epoch; its ranks deal each
batch among themselves. So replicas stay apart whatever the number of ranks, and one may come back
with another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch

from syncline.data import SequenceStream
from syncline.data.order import StreamState
from syncline.leased import Order, Unleased
from syncline.ranks import Ranks
from syncline.streamed import STREAMED
from syncline.train.folder import prepared_folder
from syncline.train.ranks import RankGroup
from syncline.train.sections import DataSection

TRAIN, HELD_OUT = "train", "held-out"
Batch = dict[str, torch.Tensor]


class Sequences(Protocol):
    """A map-style dataset: sequences by their number, each with what a batch has of it by name."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, torch.Tensor]: ...


PREPARING_S = 7 * 24 * 3600.0
"""How long the ranks of a replica wait for one of them that prepares data."""


class Feed:
    """This rank's share of its replica's sequences, micro-batch by micro-batch, without an end.

    Invariants:
        - all ranks of a replica make the same calls, and their stream is at the same place;
        - together they read each sequence of the slice once an epoch.
    """

    def __init__(
        self, dataset: Sequences, length: int, stream: SequenceStream, ranks: RankGroup
    ) -> None:
        """``stream`` is read until something else is followed."""
        self._dataset, self._length = dataset, length
        self._stream = stream
        self._order: Order = Unleased(stream)
        self._ranks = ranks

    @classmethod
    def open(
        cls, dataset: Sequences, data: DataSection, *, ordinal: int, replicas: int, ranks: RankGroup
    ) -> Feed:
        """The slice of the replica that joined as number ``ordinal`` of a run of ``replicas``.

        More may join than a run expects: those walk the slices again, in another order.

        Raises:
            DataError: the dataset holds too little.
        """
        lap, index = divmod(ordinal, replicas)
        # Any odd constant keeps the seeds of laps apart from the neighbours of data.seed.
        seed = data.seed + lap * 0x9E3779B1
        stream = SequenceStream(len(dataset), seed, index, replicas)
        return cls(dataset, data.sequence_length, stream, ranks)

    def next(self, micro_batch: int) -> Batch:
        """What the dataset's rows have, by name, each [micro_batch, ...], on this rank's device.

        Of prepared data that is ``input_ids`` and ``labels``, int64 [micro_batch, length].
        """
        indices, _ = self._order.next(micro_batch * self._ranks.count)
        start = self._ranks.index * micro_batch
        return collated(self._dataset, indices[start : start + micro_batch], self._ranks.device)

    def follow(self, order: Order) -> None:
        """Read in this order from here on."""
        self._order = order

    def skip_to(self, tokens: int) -> None:
        """Go on as if the replica had trained ``tokens`` of its slice: where a joiner starts."""
        epoch, position = divmod(tokens // self._length, self._stream.slice_size)
        state = self._stream.state_dict()
        self._stream.load_state_dict({**state, "epoch": epoch, "position": position})

    def state_dict(self) -> dict[str, int]:
        """Where the slice is read; the same on all ranks."""
        return cast(dict[str, int], dict(self._stream.state_dict()))

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Raises DataError where the saved position is of other data or another slice."""
        self._stream.load_state_dict(cast(StreamState, state))


def prepared_by_all(data: DataSection) -> Path:
    """The job's data; rank 0 prepares it, if need be, before the others look. Collective.

    A rank with a disk of its own then prepares it there, and all the others wait for it too: on a
    line of their own, since a corpus may take longer than any step of training.

    Raises:
        DataError: what rank 0 found wrong, on all ranks.
        ProcessFailed: another rank is gone.
    """
    ranks = Ranks(alone_s=PREPARING_S)
    try:
        ranks.share(lambda: str(prepared_folder(data)))
        folder = prepared_folder(data)
        ranks.sum(0)
        return folder
    finally:
        ranks.close()


def collated(dataset: Sequences, indices: np.ndarray, device: torch.device) -> Batch:
    """The sequences as one batch on ``device``."""
    rows = [dataset[int(index)] for index in indices]
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    if device.type not in STREAMED:
        return {key: column.to(device) for key, column in batch.items()}
    # The host goes on while they are copied.
    return {k: column.pin_memory().to(device, non_blocking=True) for k, column in batch.items()}
