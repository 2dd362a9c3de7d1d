"""A ``Scratch`` that counts the bytes of what it gave that are still somebody's, or idle.

Anchors, pushes and what is pulled all lie there, so it says what a rank holds beside its training.
"""

from __future__ import annotations

import weakref
from threading import RLock

from syncline.scratch import Scratch
from syncline_proto.codec import UInt8


class Counted(Scratch):
    """May stand in for it."""

    def __init__(self) -> None:
        super().__init__()
        self._counting = RLock()  # an array may be freed while another is counted
        self._known: set[int] = set()
        self.held = self.peak = 0

    def take(self, size: int) -> UInt8:
        array = super().take(size)
        owner = array if array.base is None else array.base
        with self._counting:
            if id(owner) not in self._known:
                self._known.add(id(owner))
                self.held += size
                self.peak = max(self.peak, self.held)
                weakref.finalize(owner, self._forget, id(owner), size)
        return array

    def _forget(self, number: int, size: int) -> None:
        with self._counting:
            self._known.remove(number)
            self.held -= size
