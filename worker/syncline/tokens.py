"""The tokens that a replica has trained on, and the sequences, since it last told of them."""

from __future__ import annotations

from typing import Protocol

from syncline_proto.ranges import NOTHING, RANGES_MAX, Ranges, joined


class Summing(Protocol):
    """The ranks, as far as is needed here."""

    def sum(self, number: int) -> int: ...


class Tokens:
    """This rank's count since the last push and since the last step, and all ranks' together.

    Of leased data also which sequences were read, by all ranks: each of them knows that. Whatever
    comes of the steps that read them, they go with the next push: so each is told of once.
    """

    def __init__(self, ranks: Summing) -> None:
        self._ranks = ranks
        self._own = self._of_step = 0
        self._read: Ranges = NOTHING

    def add(self, tokens: int) -> None:
        """This rank trains on so many more."""
        self._own += tokens
        self._of_step += tokens

    def read(self, ranges: Ranges) -> None:
        """The replica reads these sequences of leased data."""
        self._read = joined(self._read, ranges)

    def take(self) -> int:
        """Of all ranks for a push, since the last time. Collective."""
        tokens, self._own = self._ranks.sum(self._own), 0
        return tokens

    def take_read(self) -> Ranges:
        """The sequences of leased data, since the last time; too many wait for the next."""
        ranges, self._read = self._read[:RANGES_MAX], self._read[RANGES_MAX:]
        return ranges

    def take_step(self) -> int:
        """Of this rank for a step, since the last time."""
        tokens, self._of_step = self._of_step, 0
        return tokens

    def sum_step(self) -> int:
        """Of all ranks for a step, since the last time. Collective."""
        return self._ranks.sum(self.take_step())

    def drop_step(self) -> None:
        """What was counted since the last step is nobody's: that step is none."""
        self._own -= self.take_step()

    def drop(self) -> None:
        """The tokens are told of otherwise, or nobody's."""
        self._own = self._of_step = 0
