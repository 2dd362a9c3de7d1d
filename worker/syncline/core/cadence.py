"""When fragments are pushed: all together, or in groups that are spread over the interval.

Streaming (Streaming DiLoCo, arXiv 2501.18512): the fragments are dealt in turn among groups, so
that neighbours are in different ones, and one group after another is pushed, each once in
``sync_every`` inner steps. What is sent at a time is then a part of the model, at a steady pace.

Which group is next is not counted but seen: the one that is furthest behind (``behind``). So
replicas that start at different times, or were late, push the same one next. If each kept to turns
of its own, one could wait for a group that the other pushes later, while the other waits for one
that it pushes later itself, for ever.

Pure. Counts inner steps; who pushes, and what, is the session's business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
        slots = (step - self._start) * self._groups // self._every
        return min(slots - self._taken, self._groups)

    def pushed(self, step: int) -> None:
        """What was due has been pushed."""
        self._taken = (step - self._start) * self._groups // self._every


def behind(
    revisions: Sequence[int], pending: Collection[int], groups: int, count: int = 1
) -> list[int]:
    """The fragments of the groups that are furthest behind, in order.

    The last fragment, whose word counts for the run, is in the last group: of groups that are
    equally far it comes last, so whatever it says of the run, all have been part of.

    Args:
        revisions: of the anchors, by fragment.
        pending: fragments whose next revision is under way.
        groups: at least 1; more than there are fragments: each is alone.
        count: how many groups.
    """
    fragments = len(revisions)
    groups = min(groups, fragments)
    members: list[list[int]] = [[] for _ in range(groups)]
    for fragment in range(fragments):
        members[(fragment - fragments) % groups].append(fragment)

    def stands(group: int) -> int:
        return min(revisions[fragment] + (fragment in pending) for fragment in members[group])

    chosen = sorted(range(groups), key=lambda group: (stands(group), group))[:count]
    return sorted(fragment for group in chosen for fragment in members[group])
