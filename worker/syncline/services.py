"""The sync services that own a run's fragments: who is asked, for how long, under which epoch.

Each owns whole fragments and goes back by itself: epochs are of a service, and never compared
between two. One that is away for a while may have come back at another address: it is looked for.
All methods may be called from any thread. Knows nothing of pushes and their rounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from syncline.link import Link
from syncline.outage import Outage
from syncline.patience import PASSING, patiently
from syncline.push import Identity
from syncline.stalled import Stalled
from syncline.voice import voice
from syncline_proto.errors import RunUnknown, Unreachable
from syncline_proto.layout import Layout
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb

Value = TypeVar("Value")


class Services:
    """One run's, as one rank of a replica talks to them."""

    def __init__(
        self,
        identity: Identity,
        layout: Layout,
        links: Mapping[int, Link],
        epochs: Mapping[int, int],
        timeouts: TimeoutSettings,
        stop: threading.Event,
    ) -> None:
        """``links`` and ``epochs``, by fragment, are its owner's; once ``stop`` is set nobody is
        asked again.
        """
        self._identity, self._layout, self._timeouts, self._stop = identity, layout, timeouts, stop
        self._links = dict(links)
        self._epochs = {link: epochs[fragment] for fragment, link in links.items()}
        self._lock = threading.Lock()
        limit = f"{timeouts.give_up_s:g} s, less once this replica is to leave"
        so = f"waiting up to {limit}; start the service again on its data folder"
        self._say = voice(identity.rank)
        self._outages = {
            link: Outage("sync", so, lambda link=link: link.address, self._say)
            for link in self._epochs
        }

    @property
    def bytes_up(self) -> int:
        return sum(link.bytes_up for link in self._epochs)

    @property
    def bytes_down(self) -> int:
        return sum(link.bytes_down for link in self._epochs)

    def close(self) -> None:
        """End every call in flight, and the connections."""
        for link in self._epochs:
            link.close()

    def link(self, fragment: int) -> Link:
        """To the owner of a fragment."""
        return self._links[fragment]

    def is_away(self, fragment: int) -> bool:
        """Whether a fragment's owner has not answered the last call."""
        return self._outages[self._links[fragment]].is_on

    def epoch(self, fragment: int) -> int:
        """The epoch of a fragment's owner, as last heard; 0: any."""
        return self._epochs[self._links[fragment]]

    def learn_epoch(self, fragment: int, asked_in: int, told: int) -> None:
        """Take up an answer's epoch (0: any), unless somebody else has learnt one since."""
        link = self._links[fragment]
        with self._lock:
            if self._epochs[link] == asked_in:
                self._epochs[link] = told

    def states(self) -> dict[int, pb.FragmentState]:
        """Where each fragment stands, asked anew: if that is before the first step, in one phase.

        A synchronous phase that starts again does so fragment by fragment. Whoever took part in one
        half of it, and had to enter anew for the other, would wait for itself.

        Raises:
            Unreachable: as ``keep_asking``; or they are in different ones for as long.
        """
        return patiently(self._states, self._timeouts.give_up_s, self._stop)

    def state(self, fragment: int) -> pb.FragmentState:
        """Where a fragment stands, asked of its owner alone.

        Raises:
            Unreachable: as ``keep_asking``.
        """
        found = self._status(fragment).fragments
        return next(state for state in found if state.fragment == fragment)

    def instance(self, fragment: int) -> str:
        """The process that serves a fragment, asked anew.

        Raises:
            Unreachable: as ``keep_asking``.
        """
        return self._status(fragment).instance

    def keep_asking(
        self, fragment: int, act: Callable[[], Value], excused_s: Callable[[], float] = lambda: 0.0
    ) -> Value:
        """Do ``act`` until the owner answers; ``excused_s`` of the time are not its own.

        Raises:
            Unreachable: it has not for ``give_up_s``.
        """
        give_up_s, link = self._timeouts.give_up_s, self._links[fragment]
        try:
            return patiently(lambda: self._once(link, act), give_up_s, self._stop, excused_s)
        except PASSING as error:
            raise Unreachable(
                f"{error.message} It was asked for {give_up_s:g} s; "
                "see that it runs, then start the replica again."
            ) from None

    def _states(self) -> dict[int, pb.FragmentState]:
        answers = [self._status(fragment) for fragment in self._one_of_each()]
        states = {state.fragment: state for answer in answers for state in answer.fragments}
        begins = not any(one.revision or one.gradient_step for one in states.values())
        if begins and len({one.phase for one in states.values()}) > 1:
            raise Unreachable(
                "The sync services have not all heard that the synchronous phase started again."
            )
        return states

    def _status(self, fragment: int) -> pb.GetRunStatusResponse:
        link, run = self._links[fragment], self._identity.run
        return self.keep_asking(fragment, lambda: link.status(run))

    def _one_of_each(self) -> list[int]:
        """A fragment of each service."""
        return list({link: fragment for fragment, link in self._links.items()}.values())

    def _once(self, link: Link, act: Callable[[], Value]) -> Value:
        outage = self._outages[link]
        try:
            with outage.noted():
                return act()
        except Unreachable:
            if outage.is_told and link.follow():
                self._say.info("sync.moved", to=link.address)
            raise
        except Stalled:
            outage.answered()  # it took the call, and has no room or waits for others
            raise Unreachable("The sync service took a call and did not answer it.") from None
        except RunUnknown:
            # A service that lost its disk before the first commit must hear of the run anew.
            me = self._identity
            link.open_run(me.run, me.replica, me.incarnation, self._layout)
            raise Unreachable("The sync service had not heard of the run.") from None
