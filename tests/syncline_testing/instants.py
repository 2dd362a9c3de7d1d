"""One round of a swarm, taken apart: whatever can happen in it happens at each of its instants.

An instant is a place between two events of the simulation: an inner step is over, a push is judged,
a lease is renewed, a result arrives. Three replicas to whom nothing happens go the same way in
every swarm of the same settings, so that what something changes is known to the event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Self

from syncline_proto.settings import RunSettings
from syncline_testing.ruled import CONTROL, LEASE_S, REVIEW_S, SERVICE
from syncline_testing.swarm import AGAIN_S, DEADLINE_S, STEP_S, Swarm

FOUNDERS = {"a": STEP_S, "b": 0.9 * STEP_S, "c": 1.1 * STEP_S}
"""How long their steps take."""
BEFORE = 3
"""Rounds before the one whose instants are taken."""
SETTLED_S, AFTER_S = 5.0, 4.0
"""When all is well again, and how long a schedule goes on then."""
CUT_S = DEADLINE_S + 1.0
AWAY_S = 0.7
"""How long the service is."""
SLACK_S = 0.4
"""What messages take, and a round's steps that are not all as long."""


def _joins(swarm: Swarm) -> None:
    swarm.register("d")


def _joins_slow(swarm: Swarm) -> None:
    swarm.steps_s["d"] = 2 * STEP_S
    swarm.register("d")


def _leaves(swarm: Swarm) -> None:
    swarm.replicas["c"].leave()


def _is_lost(swarm: Swarm) -> None:
    swarm.replicas["c"].stop()


def _is_back_at_once(swarm: Swarm) -> None:
    swarm.register("c")


def _is_replaced(swarm: Swarm) -> None:
    """By another process of its name, while it goes on."""
    swarm.register("c", beside=True)


def _is_back_before_it_is_lost(swarm: Swarm) -> None:
    swarm.replicas["c"].stop()
    swarm.after(LEASE_S / 2, lambda: swarm.register("c"))


def _is_cut_off_and_back(swarm: Swarm) -> None:
    """Nobody tells it that it is lost."""
    for line in (("c", CONTROL), (CONTROL, "c")):
        swarm.cut(line, 1.5 * LEASE_S)
    swarm.after(1.5 * LEASE_S, lambda: swarm.register("c"))


def _is_cut_from_the_service(swarm: Swarm) -> None:
    """And keeps its lease: each round waits for it until its deadline, or until it is back."""
    for line in (("c", SERVICE), (SERVICE, "c")):
        swarm.cut(line, CUT_S)


def _is_lost_and_the_service_hears_late(swarm: Swarm) -> None:
    """Which waits for it until a round's deadline, with the last membership."""
    for line in ((SERVICE, CONTROL), (CONTROL, SERVICE)):
        swarm.cut(line, CUT_S)
    swarm.replicas["c"].stop()


def _service_restarts(swarm: Swarm) -> None:
    swarm.stop_service()
    swarm.after(AWAY_S, swarm.start_service)


def _service_stops_amid_a_commit(swarm: Swarm) -> None:
    swarm.tear_next_commit()
    for again in range(1, 5):
        swarm.after(again * AWAY_S, swarm.start_service)


def _control_plane_restarts(swarm: Swarm) -> None:
    swarm.stop_control()
    swarm.after(2 * LEASE_S, swarm.start_control)


@dataclass(frozen=True, slots=True)
class Misfortune:
    """Something that happens at an instant."""

    happens: Callable[[Swarm], None]
    costs_s: float = 0.0
    """By so much may rounds be further apart for it."""
    there: str = "abc"
    """Who trains when all is well again."""
    settled_s: float = SETTLED_S
    """When that is."""


LOSS_S = LEASE_S + REVIEW_S
MISFORTUNES = {
    "joins": Misfortune(_joins, there="abcd"),
    "joins, and is slow": Misfortune(_joins_slow, 4 * STEP_S, "abcd"),
    "leaves": Misfortune(_leaves, there="ab"),
    "is lost": Misfortune(_is_lost, LOSS_S, "ab"),
    "is back at once": Misfortune(_is_back_at_once),
    "is replaced": Misfortune(_is_replaced),
    "is back before it is lost": Misfortune(_is_back_before_it_is_lost, LEASE_S / 2),
    "is cut off, and back": Misfortune(_is_cut_off_and_back, LOSS_S),
    "is cut from the service": Misfortune(
        _is_cut_from_the_service, CUT_S + AGAIN_S, settled_s=CUT_S + SETTLED_S
    ),
    "is lost, and the service hears late": Misfortune(
        _is_lost_and_the_service_hears_late, CUT_S, "ab", CUT_S + SETTLED_S
    ),
    "service restarts": Misfortune(_service_restarts, AWAY_S + AGAIN_S),
    "service stops amid a commit": Misfortune(_service_stops_amid_a_commit, AWAY_S + AGAIN_S),
    "control plane restarts": Misfortune(_control_plane_restarts),
}


class Schedule:
    """A swarm of the founders, looked at after each event."""

    def __init__(self, settings: RunSettings) -> None:
        self.swarm = Swarm(settings)
        self.swarm.steps_s.update(FOUNDERS)
        for name in FOUNDERS:
            self.swarm.register(name)
        self.waited_for_s = inf
        """Since when a round waits for who has joined."""

    def happens(self, until_s: float = inf) -> bool:
        """Let an event be, and see that all holds."""
        swarm, goes_on = self.swarm, self.swarm.happens(until_s)
        swarm.check()
        if self.waited_for_s == inf and any("d" in core.expected for core in swarm.cores):
            self.waited_for_s = swarm.now_s
        return goes_on

    def until(self, when_s: float) -> Self:
        while self.happens(when_s):
            pass
        return self

    def closings_s(self, since_s: float = 0.0) -> list[list[float]]:
        """By fragment, when rounds closed that hold a push of a founder."""
        return [
            [at for at, names in rounds if at >= since_s and names & FOUNDERS.keys()]
            for rounds in self.swarm.closings
        ]


class Round:
    """The round of a run of these settings that is taken apart."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        schedule, rounds = Schedule(settings), BEFORE * (3 if settings.asynchronous else 1)
        events = begins = ends = 0
        while not ends:
            schedule.happens()
            events += 1
            done = min(map(len, schedule.swarm.closings))
            if done < rounds:
                begins = events + 1
            elif done >= rounds + (3 if settings.asynchronous else 1):
                ends = events
        self.instants = range(begins, ends)
        self._alone = schedule.until(schedule.swarm.now_s + SETTLED_S + AFTER_S)

    def tried(self, why: Misfortune, instant: int) -> None:
        """Let it happen there, and see what becomes of the run."""
        schedule = Schedule(self.settings)
        swarm = schedule.swarm
        for _ in range(instant):
            swarm.happens(inf)
        at_s = swarm.now_s
        why.happens(swarm)
        schedule.until(at_s + why.settled_s)
        before = {one.name: list(one.revisions) for one in swarm.replicas.values() if one.alive}
        assert "".join(sorted(before)) == why.there
        swarm.run(swarm.now_s + AFTER_S)
        swarm.check()
        for name, then in before.items():
            one = swarm.replicas[name]
            ahead = zip(one.revisions, then, strict=True)
            assert one.alive and all(now > before for now, before in ahead), f"{name} waits"
        self._nobody_waited_for_long(schedule, why)
        if "d" in why.there:
            self._nothing_closed_later(schedule)

    def _nobody_waited_for_long(self, schedule: Schedule, why: Misfortune) -> None:
        usual_s = max(map(_longest_s, self._alone.closings_s()))
        for times_s in schedule.closings_s():
            longest_s = _longest_s([*times_s, schedule.swarm.now_s])
            assert longest_s <= usual_s + why.costs_s + SLACK_S, "a round was open for too long"

    def _nothing_closed_later(self, schedule: Schedule) -> None:
        """Before anybody waits for who has joined, as a member: from then on it is one of them."""
        is_member_s = inf if self.settings.asynchronous else schedule.waited_for_s
        end_s = min(is_member_s, schedule.swarm.now_s)
        for alone, joined in zip(self._alone.closings_s(), schedule.closings_s(), strict=True):
            by_then = [at for at in alone if at < end_s]
            assert len(joined) >= len(by_then), "the join held a round up"
            assert all(at <= was for at, was in zip(joined, by_then, strict=False)), "delayed"


def _longest_s(times_s: list[float]) -> float:
    return max(b - a for a, b in zip(times_s, times_s[1:], strict=False))
