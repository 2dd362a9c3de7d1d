"""Payload bytes of a replica, over all its ranks.

This rank's are as they are; the others' as they last told, which costs no collective of its own: it
goes along with a sum that all ranks make anyway. Only counts.
"""

from __future__ import annotations

from syncline.exchange import Exchange
from syncline.ranks import Ranks


class Traffic:
    """What one replica has sent and received. Any thread may ask."""

    def __init__(self, ranks: Ranks, exchange: Exchange) -> None:
        self._ranks, self._exchange = ranks, exchange
        self._others = (0, 0)
        """Up and down."""

    @property
    def up(self) -> int:
        return self._exchange.bytes_up + self._others[0]

    @property
    def down(self) -> int:
        return self._exchange.bytes_down + self._others[1]

    def sum(self, number: int) -> int:
        """The sum over all ranks; with it they tell of their bytes. Collective."""
        own = (self._exchange.bytes_up, self._exchange.bytes_down)
        sums = [sum(told) for told in zip(*self._ranks.gather([number, *own]), strict=True)]
        self._others = (sums[1] - own[0], sums[2] - own[1])
        return sums[0]
