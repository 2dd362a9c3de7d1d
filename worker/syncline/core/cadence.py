"""When each fragment is pushed: all together, or in groups that are spread over the interval.

Streaming (Streaming DiLoCo, arXiv 2501.18512): the fragments are dealt in turn among groups, so
that neighbours are in different ones, and each group is pushed every ``sync_every`` inner steps,
one after another. What is sent at a time is then a part of the model, at a steady pace.

Pure. Counts inner steps; who pushes, and what, is the session's business.
"""

from __future__ import annotations

from collections.abc import Collection


class Cadence:
    """The next push of each group, in inner steps.

    Invariant: of any ``sync_every`` steps in a row each group is pushed in one, unless somebody
    pushes earlier or later than told.
    """

    def __init__(self, fragments: int, groups: int, sync_every: int, step: int = 0) -> None:
        """``groups`` beyond the number of fragments: each fragment alone."""
        self._fragments, self._groups = fragments, min(groups, fragments)
        self._every, self._last = sync_every, step
        self._next: list[int] = []
        self.start_over(step)

    @property
    def since(self) -> int:
        """The step of the last push, or of the start."""
        return self._last

    def start_over(self, step: int) -> None:
        """Begin at a step at which nothing is to be pushed."""
        self._last = step
        self._next = self._spread(range(self._groups))

    def adopt(self, sync_every: int) -> None:
        """Take another interval: the groups are spread over it anew, in the order they were in."""
        if sync_every != self._every:
            self._every = sync_every
            order = sorted(range(self._groups), key=self._next.__getitem__)
            self._next = self._spread(order)

    def due(self, step: int) -> list[int]:
        """The fragments that are to be pushed after this inner step, in order."""
        return [f for f in range(self._fragments) if self._next[self._group(f)] <= step]

    def pushed(self, fragments: Collection[int], step: int) -> None:
        """These were pushed after this step; those that were not due keep their turn."""
        self._last = step
        for group in {self._group(fragment) for fragment in fragments}:
            while self._next[group] <= step:
                self._next[group] += self._every

    def _group(self, fragment: int) -> int:
        """The last fragment, whose word counts for the run, is in the last group."""
        return (fragment - self._fragments) % self._groups

    def _spread(self, order: Collection[int]) -> list[int]:
        """Deal the interval after the last push among the groups; the last has its end."""
        ends = [0] * self._groups
        for place, group in enumerate(order, start=1):
            ends[group] = self._last - (-place * self._every // self._groups)
        return ends
