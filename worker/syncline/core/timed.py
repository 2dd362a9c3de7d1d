"""When fragments are pushed by time: once in each interval, wherever a replica's steps end.

A-EDiT (arXiv 2412.07210): in an interval who is faster makes more inner steps. It begins with the
publication of the last fragment's newest revision, which is one instant for all replicas: so all
have one grid, joiners too, and who was held up once is not behind for ever. The groups are spread
evenly over it, as the cadence spreads them over steps.

What is due at the end of an interval is pushed after the last step that ends before it, not after
the first beyond it: otherwise everybody would wait for the rest of a step of the slowest, where so
each waits for less than a step of its own.

An interval may be longer than that, to bring a least total of steps. Two things see to it. A
forecast says when all together will have made so many, so that all push at about the same time. And
each owes a part of the total, which all reckon alike from what the round before brought: so the
total is there wherever all of its replicas are, however wrong the forecasts were.

Pure. Time comes in as seconds of any clock that never goes back, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

PROLONGED_MAX = 4.0
"""An interval that is to bring a least total of steps lasts at most so many times ``sync_seconds``:
a run that has lost most of its replicas, or that will never bring so many, goes on all the same."""


class Accepted(Protocol):
    """A push that a revision was made of."""

    @property
    def replica(self) -> str: ...
    @property
    def inner_steps(self) -> int: ...
    @property
    def age(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Publication:
    """A revision of the last fragment, as one replica has heard of it."""

    revision: int
    at_s: float
    """On that replica's own clock."""
    others: int = 0
    """Inner steps that other replicas brought to it."""
    in_time: tuple[int, ...] = ()
    """Those of each replica that was in time, in an order that is the same for all of them."""
    own: int | None = None
    """Which of these are this replica's; None: it was not in time."""

    @classmethod
    def of(cls, revision: int, at_s: float, pushes: Iterable[Accepted], name: str) -> Self:
        """As the replica of that name has it, with the pushes that a header tells."""
        pushes = tuple(pushes)
        names = [push.replica for push in pushes if push.age == 0]
        return cls(
            revision,
            at_s,
            sum(push.inner_steps for push in pushes if push.replica != name),
            tuple(push.inner_steps for push in pushes if push.age == 0),
            names.index(name) if name in names else None,
        )


@dataclass(frozen=True, slots=True)
class Instant:
    """Where a replica stands between two inner steps."""

    now_s: float
    steps: int = 0
    """Inner steps of the last fragment that were not pushed."""
    step_s: float = 0.0
    """How long the next step will take; 0 while nobody knows."""


class Timed:
    """How many groups are due, by time: in each interval each once."""

    def __init__(self, groups: int, sync_seconds: float, min_steps: int, now_s: float) -> None:
        """``min_steps``: an interval goes on until all replicas together have made so many."""
        self._groups, self._seconds, self._min_steps = groups, sync_seconds, min_steps
        self._newest: Publication | None = None
        self._rate = 0.0
        """Inner steps that the others make in a second, as far as we know."""
        self._aim = min_steps
        """The total that is forecast: each of the others may end up to a step short of it."""
        self._owes = 0
        """Inner steps without which the last fragment is not pushed."""
        self._start_s, self._taken = now_s, 0
        self._since_last = 0
        """Groups pushed after the last one: they are of the interval that its revision begins."""

    def start_over(self, now_s: float, newest: Publication | None) -> None:
        """Begin where nothing is due: what others have pushed since ``newest`` is not ours."""
        self._newest, self._rate, self._since_last = None, 0.0, 0
        self._aim, self._owes = self._min_steps, 0
        self._start_s, self._taken = now_s, 0
        if newest is not None:
            self.see(newest)
            self._owes = 0  # like a joiner: of its interval the others have made a part
            self._taken = self._slots(Instant(now_s))

    def see(self, newest: Publication) -> None:
        """The revision that was merged last: if it is another one, an interval begins with it."""
        if newest == self._newest:
            return
        self._rate = newest.others / self._lasted_s(newest)
        in_time, own = newest.in_time, newest.own
        self._aim = self._min_steps + len(in_time) - (own is not None)
        self._owes = 0 if own is None else parts(self._min_steps, in_time)[own]
        self._newest, self._start_s, self._taken = newest, newest.at_s, self._since_last
        self._since_last = 0

    def adopt(self, sync_seconds: float, min_steps: int, now_s: float) -> None:
        """Take another interval, counted from now if something is due or was just taken."""
        self._aim += min_steps - self._min_steps
        self._min_steps = min_steps
        if sync_seconds != self._seconds:
            passed_s = self._start_s + self._taken * self._seconds / self._groups
            self._seconds = sync_seconds
            self._start_s, self._taken = min(passed_s, now_s), 0

    def due(self, at: Instant) -> int:
        """The number of groups that are due by now; below 0, some were pushed ahead."""
        return min(self._slots(at) - self._taken, self._groups)

    def to_push(self, at: Instant, before_last: Callable[[int], int]) -> int:
        """The number of groups that are to be pushed now.

        ``before_last`` tells of so many how many come before the last fragment
        (``Turns.before_last``).
        """
        due = max(0, self.due(at))
        return before_last(due) if self.withholds_last(at) else due

    def withholds_last(self, at: Instant) -> bool:
        """Whether none is pushed from the last fragment's on, since steps are owed for that."""
        return at.steps < self._owes and self._passed_s(at) < PROLONGED_MAX * self._seconds

    def pushed(self, groups: int, at: Instant, after_last: int | None = None) -> None:
        """So many of those due have been; the others stay due, but not twice.

        Pushes that only catch up are none of them, and ``after_last`` is how many of them came
        after the last group; None: that was not among them. ``Turns.of_interval`` tells both.
        """
        self._taken = max(self._taken + groups, self._slots(at) - self._groups)
        self._since_last = self._since_last + groups if after_last is None else after_last
        if after_last is not None:
            self._owes = 0

    def _passed_s(self, at: Instant) -> float:
        """Of the interval, at the end of the next step."""
        return max(0.0, at.now_s - self._start_s) + at.step_s

    def _slots(self, at: Instant) -> int:
        passed_s = self._passed_s(at)
        share = passed_s / self._seconds
        if self._min_steps:
            steps = (at.steps + self._rate * passed_s) / self._aim
            share = max(min(share, steps), share / PROLONGED_MAX)
        return int(share * self._groups)

    def _lasted_s(self, newest: Publication) -> float:
        """How long the replicas took for a round, by the last two that we have heard of.

        Who has heard of one only, takes it to have been as long as is asked for. None is longer
        than it may be: the rest was a pause, or nobody was there.
        """
        before, longest_s = self._newest, PROLONGED_MAX * self._seconds
        if before is None or newest.revision <= before.revision or newest.at_s <= before.at_s:
            return self._seconds
        passed_s = newest.at_s - before.at_s
        return min(passed_s / (newest.revision - before.revision), longest_s)


def parts(least: int, brought: Sequence[int]) -> list[int]:
    """What each replica owes of a least total, by what each brought to the round before.

    They sum to it. They are in proportion, and of all whole numbers that are, those that take the
    least time at the pace of that round (the method of highest averages): where that brought
    enough, nobody owes more than it has just made, and who made few steps owes one less first.
    """
    total = sum(brought)
    if total == 0:
        return [0] * len(brought)
    found = [least * steps // total for steps in brought]

    def pace(number: int) -> tuple[float, int]:
        return brought[number] / (found[number] + 1), brought[number]

    for _ in range(least - sum(found)):
        found[max(range(len(found)), key=pace)] += 1
    return found
