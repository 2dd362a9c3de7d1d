"""Which group of fragments is pushed next: the one that is furthest behind.

It is not counted but seen. So all replicas push in one order, by revision and then by group,
whenever they came and however late they were: what somebody waits for, everybody pushes before
what comes after it. If each kept to turns of its own, one could wait for a group that the other
pushes later, while the other waits for one that it pushes later itself, for ever.

Where no round waits there is nobody to keep step with, and revisions tell how much others push: so
a replica counts its own pushes instead.

Late for every fragment of a group, a replica pushes the group that follows after its next step,
due or not (with one group: the same again), until it is among the first: who always comes late
would otherwise never count. Late for some, it keeps their progress for its next push.

Pure. Knows revisions; when a push is due is the cadence's business.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from syncline.core.plan import in_step


class Turns:
    """The groups of one replica, and which of its pushes came late."""

    def __init__(self, fragments: int, groups: int, by_revision: bool = True) -> None:
        """Deal the fragments; more groups than there are fragments: each is alone.

        The last fragment, whose word counts for the run, is in the last group: of groups that are
        equally far it comes last, so whatever it says of the run, all have been part of.
        """
        groups = min(groups, fragments)
        self.groups: list[list[int]] = [[] for _ in range(groups)]
        for fragment in range(fragments):
            self.groups[(fragment - fragments) % groups].append(fragment)
        self._own: list[int] | None = None if by_revision else [0] * fragments
        """By fragment: pushes that are over; None: revisions tell."""
        self._late: set[int] = set()
        """Fragments whose last push came late."""

    def start_over(self) -> None:
        """Nothing was pushed."""
        self._late.clear()

    def pushed(self, fragments: Collection[int]) -> None:
        """What becomes of their pushes is not known."""
        self._late.difference_update(fragments)

    def landed(self, fragment: int) -> None:
        """Its push is over, whatever came of it."""
        if self._own is not None:
            self._own[fragment] += 1

    def came_late(self, fragment: int) -> bool:
        """Its push was too late for its round; whether the last ones of its whole group were."""
        self._late.add(fragment)
        return self._late.issuperset(next(group for group in self.groups if fragment in group))

    def in_the_way(
        self, revisions: Sequence[int], pending: Collection[int], count: int
    ) -> list[int]:
        """The fragments whose rounds must be over before so many groups can be pushed."""
        coming = itertools.islice(self._coming(revisions, pending), count)
        return sorted({f for group, _ in coming for f in group if f in pending})

    def before_last(self, revisions: Sequence[int], pending: Collection[int], count: int) -> int:
        """Of so many pushes, how many come in their turn before the last fragment's."""
        last = len(revisions) - 1
        coming = itertools.islice(self._coming(revisions, pending), count)
        return sum(1 for _ in itertools.takewhile(lambda turn: last not in turn[1], coming))

    def of_interval(
        self, groups: Sequence[Collection[int]], revisions: Sequence[int]
    ) -> tuple[int, int | None]:
        """Of groups pushed one after another, each as its fragments, those that count as a turn.

        How many, and how many of these after the last fragment's; None: that is not among them.

        The others only catch up: they stand at an older revision than the last fragment. Who comes
        amid a round has such, and who was late for them. If they took the time of others, the last
        one would come an interval late.
        """
        revisions = self._own or revisions
        last = len(revisions) - 1
        its = [group for group in groups if max(revisions[f] for f in group) >= revisions[last]]
        after = next((n for n, group in enumerate(reversed(its)) if last in group), None)
        return len(its), after

    def _coming(
        self, revisions: Sequence[int], pending: Collection[int]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """The groups whose turns come, and which fragments of each; without end."""
        revisions = self._own or revisions
        stands = [revision + (f in pending) for f, revision in enumerate(revisions)]
        while True:
            group = min(self.groups, key=lambda group: min(stands[f] for f in group))
            yield group, (members := in_step(stands, group))
            for fragment in members:
                stands[fragment] += 1

    def following(
        self,
        revisions: Sequence[int],
        pending: Collection[int],
        ready: Collection[int],
        count: int | None,
    ) -> list[list[int]]:
        """The groups that are to be pushed next, each as its fragments.

        Of a group, those at its oldest revision (``in_step``).

        Args:
            revisions: of the anchors, by fragment.
            pending: fragments whose next revision is under way.
            ready: fragments that hold progress, and are not pending.
            count: how many at most; where the next cannot be pushed yet, none after it is. None:
                all that can be, by who leaves and will not have to wait for what is between.
        """

        revisions, under_way = self._own or revisions, set(pending)

        def stands(group: Collection[int]) -> int:
            return min(revisions[fragment] + (fragment in under_way) for fragment in group)

        def in_turn(group: Collection[int]) -> list[int]:
            # Nothing ahead of what is under way, either: that may tell that the run has ended.
            moving = [f for f in group if f in ready or f in under_way]
            return [f for f in in_step(revisions, moving) if f not in under_way]

        if count is None:
            every = (in_turn(group) for group in sorted(self.groups, key=stands))
            return [members for members in every if members]
        chosen: list[list[int]] = []
        # One after the other: what was pushed last may be furthest behind still.
        while len(chosen) < count and (members := in_turn(min(self.groups, key=stands))):
            chosen.append(members)
            under_way.update(members)
        return chosen
