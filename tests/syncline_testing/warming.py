"""The synchronous phase of a swarm's run: what its service keeps, and a life's way through it.

A life comes into the phase before its first step is made, or waits for its end. A step is over with
the means of all fragments; after the last one it offers its parameters, as everybody does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from syncline_proto.settings import RunSettings
from syncline_sync.core.ending import Ending
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import KEPT, Closing, Kind, Saved, WholePush
from syncline_testing.simulated import FRAGMENTS

if TYPE_CHECKING:
    from syncline_testing.lives import Exchange, Living
    from syncline_testing.swarm import Swarm

LOOK_S = 0.25
"""Between two looks at where the run stands."""


class Phase:
    """What the disk has of it, and what must hold."""

    def __init__(self) -> None:
        self.means: list[dict[int, Saved]] = [{} for _ in range(FRAGMENTS)]
        """By fragment: the gradient steps that are kept."""
        self._offers: list[Saved | None] = [None for _ in range(FRAGMENTS)]
        self._ending, self._seen = Ending(range(FRAGMENTS)), (0, False)
        self._number = 0
        self._inside: dict[int, set[tuple[str, int]]] = {}
        """By fragment: the lives whose gradients are in the newest mean of this phase."""

    def begun(self, settings: RunSettings, stored: Sequence[Saved]) -> list[Fragment]:
        """The fragments of a service that starts."""
        ending = self._ending = Ending(range(FRAGMENTS), phase=max(one.phase for one in stored))
        self._seen = ending.phase, ending.decided
        offers = zip(stored, self._offers, strict=True)
        return [
            Fragment(settings, saved, number=number, ending=ending, offer=offer)
            for number, (saved, offer) in enumerate(offers)
        ]

    def has_moved(self, members: Mapping[str, int]) -> bool:
        """Whether it has ended, or begun anew, since this was asked last: all fragments hear it."""
        seen, self._seen = self._seen, (self._ending.phase, self._ending.decided)
        if self._ending.phase > self._number:
            inside = set[tuple[str, int]].intersection(*self._inside.values())
            here = {name for name, life in inside if members.get(name) == life}
            assert not here, "it begins anew without those who are in it"
            self._number, self._inside = self._ending.phase, {}
            self.means = [{} for _ in range(FRAGMENTS)]
        return seen != self._seen

    def keep_offer(self, fragment: int, core: Fragment) -> None:
        if core.offer is not None:
            self._offers[fragment] = core.offer
            core.keep_offer()

    def commit(self, fragment: int, closing: Closing, stored: Sequence[Saved]) -> None:
        """A mean, or what was offered, is stored."""
        saved, before = closing.saved, stored[fragment]
        if closing.kind is Kind.GRADIENT:
            goes_on = saved.phase == before.phase
            assert saved.gradient_step == 1 + before.gradient_step * goes_on
            assert (before.revision, saved.revision) == (0, 0)
            self._inside[fragment] = {(c.replica, c.incarnation) for c in saved.contributions}
            self.means[fragment][saved.gradient_step] = saved
            self.means[fragment].pop(saved.gradient_step - KEPT, None)
            return
        for one, offer in zip(stored, self._offers, strict=True):
            assert one.revision or (offer is not None and offer.phase == saved.phase), "half of it"
        assert saved.revision == 1
        self.means[fragment].clear()

    def pull_mean(self, swarm: Swarm, replica: Living, fragment: int, exchange: Exchange) -> None:
        """What a gradient of a replica is waiting for; None is told of what is not to come."""
        push, core, instance = exchange.push, swarm.cores[fragment], swarm.instance
        step, is_of_now = push.gradient_step, of_phase(core, push)

        def told() -> None:
            mean = self.means[fragment].get(step) if is_of_now() else None
            heard = lambda: replica.hear_mean(fragment, exchange, mean, instance)  # noqa: E731
            swarm.answer(replica, heard)

        def is_there() -> bool:
            saved = core.saved
            return saved.revision > 0 or saved.gradient_step >= step or not is_of_now()

        swarm.wait(fragment, is_there, told)


def of_phase(core: Fragment, push: WholePush) -> Callable[[], bool]:
    """Whether a push is of the synchronous phase that its fragment is in, or was in last."""
    return lambda: push.phase in (None, core.saved.phase)


class Warming:
    """Of one life; not for runs without such a phase."""

    def __init__(self, replica: Living, swarm: Swarm) -> None:
        self._replica, self._swarm = replica, swarm
        self.is_on = False
        """It takes part in the phase."""
        self.step = 0
        """Means that it has pushed for."""
        self.phases: list[int] = []
        """By fragment: the number of the phase that it takes part in."""
        self._gone: set[int] = set()
        """Fragments whose offer came to nothing, since the phase has begun anew."""
        self._heard: dict[int, bool] = {}
        """By fragment, whether the mean of this step came; False: the phase went on without us."""

    def enter(self) -> None:
        """Take part if nobody has made a step; else wait for revision 1, and go on from there."""
        replica, states = self._replica, self._swarm.states(self._replica)
        if not replica.alive:
            return
        if states is None:
            self._swarm.after(LOOK_S, self.enter)
        elif all(revision for revision, *_ in states):
            replica.begin_at([revision for revision, *_ in states])
        elif not any(revision or step for revision, step, _ in states):
            self.is_on, self.step = True, 0
            self.phases = [phase for *_, phase in states]
            replica.train()
        else:
            assert not any(revision for revision, *_ in states), "half of it is at revision 1"
            self._swarm.after(LOOK_S, self.enter)

    def trained(self) -> None:
        """A gradient is there: push it everywhere."""
        self.step, self._heard = self.step + 1, {}
        for fragment in range(len(self._replica.revisions)):
            of_phase = {"gradient_step": self.step, "phase": self.phases[fragment]}
            self._swarm.push_of(self._replica, fragment, kind=Kind.GRADIENT, base=None, **of_phase)

    def hear(self, fragment: int, mean: Saved | None) -> None:
        """The mean of a fragment; None: it is gone, or the phase is."""
        self._heard[fragment] = mean is not None
        replica = self._replica
        if len(self._heard) < len(replica.revisions):
            return
        if not all(self._heard.values()):
            self.is_on = False
            replica.tell_again()
            self.enter()
        elif self.step < self._swarm.settings.warmup_steps:
            replica.train()
        else:
            self.is_on = False
            replica.offer()

    def hear_gone(self, fragment: int) -> None:
        """Nobody takes what was offered: the phase has begun anew, for all fragments at once."""
        self._gone.add(fragment)
        if len(self._gone) == FRAGMENTS:
            self._gone.clear()
            self._replica.forget_offers()
            self._replica.tell_again()
            self.enter()
