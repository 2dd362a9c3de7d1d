"""The tokens that a replica has trained on, since it last told of them."""

from __future__ import annotations

from syncline.ranks import Ranks


class Tokens:
    """This rank's count since the last push and since the last step, and all ranks' together."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._own = self._of_step = 0

    def add(self, tokens: int) -> None:
        """This rank trains on so many more."""
        self._own += tokens
        self._of_step += tokens

    def take(self) -> int:
        """Of all ranks for a push, since the last time. Collective."""
        tokens, self._own = self._ranks.sum(self._own), 0
        return tokens

    def take_step(self) -> int:
        """Of this rank for a step, since the last time."""
        tokens, self._of_step = self._of_step, 0
        return tokens

    def sum_step(self) -> int:
        """Of all ranks for a step, since the last time. Collective."""
        return self._ranks.sum(self.take_step())

    def drop(self) -> None:
        """They are told of otherwise, or nobody's."""
        self._own = self._of_step = 0
