"""When fragments are pushed: all together, or in groups that are spread over the interval.

Streaming (Streaming DiLoCo, arXiv 2501.18512): the fragments are dealt in turn among groups, so
that neighbours are in different ones, and one group after another is pushed, each once in
``sync_every`` inner steps. What is sent at a time is then a part of the model, at a steady pace.
Which group that is, see ``turns``.

Pure. Counts inner steps; who pushes, and what, is the session's business.
"""

from __future__ import annotations


class Cadence:
    """How many groups are due, by inner steps: of any ``sync_every`` in a row, each once."""

    def __init__(self, groups: int, sync_every: int, step: int = 0) -> None:
        self._groups, self._every = groups, sync_every
        self._start, self._taken = step, 0

    def start_over(self, step: int) -> None:
        """Begin at a step at which nothing is due."""
        self._start, self._taken = step, 0

    def adopt(self, sync_every: int, step: int) -> None:
        """Take another interval, counted from this step if something is due or was just taken."""
        if sync_every != self._every:
            passed = self._start + self._taken * self._every // self._groups
            self._every = sync_every
            self.start_over(min(passed, step))

    def due(self, step: int) -> int:
        """The number of groups that are to be pushed after this inner step."""
        return min(self._slots(step) - self._taken, self._groups)

    def pushed(self, groups: int, step: int) -> None:
        """So many of those due have been; the others stay due, but not twice."""
        self._taken = max(self._taken + groups, self._slots(step) - self._groups)

    def _slots(self, step: int) -> int:
        return (step - self._start) * self._groups // self._every
