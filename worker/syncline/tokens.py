"""The tokens that a replica has trained on since it last told a push of them."""

from __future__ import annotations

from syncline.ranks import Ranks


class Tokens:
    """This rank's count, and the sum of all ranks' when a push needs it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._own = 0

    def add(self, tokens: int) -> None:
        """This rank trains on so many more."""
        self._own += tokens

    def take(self) -> int:
        """Of all ranks, since the last time. Collective."""
        tokens, self._own = self._ranks.sum(self._own), 0
        return tokens

    def drop(self) -> None:
        """They are told of otherwise, or nobody's."""
        self._own = 0
