"""The order in which a replica reads leased data: the same on all its ranks.

Runs on the training thread. Where the control plane is away for longer than the leases last,
training goes on with sequences of the replica's own, which nobody counts.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from structlog.typing import FilteringBoundLogger

from syncline.data.order import SequenceStream, Stretches
from syncline.leases import Leases
from syncline.ranks import Ranks
from syncline.tokens import Tokens
from syncline_proto.leased import Dataset
from syncline_proto.ranges import NOTHING, Range, Ranges, count, joined, split, without


class Order(Protocol):
    """Which sequences come next, without an end."""

    def next(self, batch: int, /) -> tuple[np.ndarray, int]:
        """The next ``batch`` sequences (int64), which are read now, and the epoch of the first.

        Raises:
            DataMismatch: the run's data is another.
        """
        ...

    def draw(self, batch: int, /) -> Drawn:
        """The next ``batch`` sequences, for who reads them later.

        Raises:
            DataMismatch: the run's data is another.
        """
        ...

    def read(self, drawn: Drawn, /) -> None:
        """What was drawn is given to a step."""
        ...


class Drawn:
    """A batch that was drawn; it counts as read once it is given to the loop."""

    def __init__(self, sequences: np.ndarray, ranges: Ranges, epoch: int) -> None:
        self.sequences, self.ranges, self.epoch = sequences, ranges, epoch
        """int64; no ranges where they are not leased."""


class Unleased:
    """Sequences that nobody leases."""

    def __init__(self, stream: SequenceStream) -> None:
        self._stream = stream

    def next(self, batch: int) -> tuple[np.ndarray, int]:
        """The next ``batch`` sequences (int64), and the epoch of the first of them."""
        return self._stream.next(batch)

    def draw(self, batch: int) -> Drawn:
        """The same, as what was drawn."""
        sequences, epoch = self._stream.next(batch)
        return Drawn(sequences, NOTHING, epoch)

    def read(self, drawn: Drawn) -> None:
        """Nobody is told."""


class Leased:
    """One life's leased sequences.

    Invariant: all ranks make the same calls, and hold the same.
    """

    def __init__(
        self,
        ranks: Ranks,
        tokens: Tokens,
        leases: Leases | None,
        dataset: Dataset,
        own: SequenceStream,
        wait_s: float,
        log: FilteringBoundLogger,
    ) -> None:
        """``leases`` are rank 0's; ``own`` is read where there are none; ``log`` is silent on all
        ranks but the first."""
        self._ranks, self._tokens, self._leases = ranks, tokens, leases
        self.dataset, self._own, self._wait_s, self._log = dataset, own, wait_s, log
        self._order = Stretches(dataset.sequences, dataset.seed)
        self._queue: Ranges = NOTHING
        self._drawn: Ranges = NOTHING
        """Given to nobody yet: whoever loads batches ahead has them."""
        self._has_said = False

    def again(self) -> None:
        """What was drawn, and was given to no step, is drawn once more; on all ranks."""
        self._queue, self._drawn = self.unread, NOTHING

    @property
    def unread(self) -> Ranges:
        """What is leased, and was given to no step."""
        return joined(self._queue, self._drawn)

    def next(self, batch: int) -> tuple[np.ndarray, int]:
        """The next ``batch`` sequences (int64), which are read now, and the epoch of the first.

        Raises:
            DataMismatch: the run's data is another.
        """
        drawn = self.draw(batch)
        self.read(drawn)
        return drawn.sequences, drawn.epoch

    def draw(self, batch: int) -> Drawn:
        """The next ``batch`` sequences, for who reads them later; collective.

        Raises:
            DataMismatch: the run's data is another.
        """
        while (held := count(self._queue)) < batch:
            more = self._ranks.share(lambda lack=batch - held: self._taken(lack))
            if not more:
                return self._of_its_own(batch)
            self._queue = joined(self._queue, (Range(*one) for one in more))
        ranges, self._queue = split(self._queue, batch)
        self._drawn = joined(self._drawn, ranges)
        return Drawn(self._sequences(ranges), ranges, ranges[0].epoch)

    def read(self, drawn: Drawn) -> None:
        """What was drawn is given to a step."""
        self._drawn = without(self._drawn, drawn.ranges)
        self._tokens.read(drawn.ranges)

    def _taken(self, least: int) -> Ranges:
        assert self._leases is not None
        return self._leases.take(least, self._wait_s)

    def _of_its_own(self, batch: int) -> Drawn:
        if not self._has_said:
            why = "no data could be leased in time"
            so = "it goes on with sequences of its own, which nobody counts"
            self._log.warning("data.unleased", why=why, so=so)
            self._has_said = True
        sequences, epoch = self._own.next(batch)
        return Drawn(sequences, NOTHING, epoch)

    def _sequences(self, ranges: Ranges) -> np.ndarray:
        return np.concatenate([self._order.at(*one) for one in ranges])
