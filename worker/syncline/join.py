"""How a replica joins a run: the run's settings, a lease, the sync services.

Rank 0 talks to the control plane and opens the run at the sync services; the other ranks hear
the result. What comes back is all that a session needs; nothing of the model has changed yet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import structlog

from syncline.background import in_background
from syncline.control import ControlClient, all_alive
from syncline.elsewhere import found_elsewhere
from syncline.link import Link
from syncline.outage import Outage
from syncline.patience import patiently
from syncline.ranks import Ranks
from syncline.recall import CALLED_OFF, Recall, unless_recalled
from syncline.standing import owners_of
from syncline.wish import Wish
from syncline_proto.differing import in_words
from syncline_proto.errors import CalledOff, RunConflict, RunFull, RunUnknown, Unreachable
from syncline_proto.layout import Layout
from syncline_proto.owners import Seat
from syncline_proto.rest import Registration, ReplicaRegister, RunCreate, RunView, SyncEndpoint
from syncline_proto.settings import LIVE, RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb

Told = TypeVar("Told")

PLACE_S = 2.0
"""Between two questions for a place in a run that is full."""

GIVEN_BEFORE = (
    "the control plane has given this life a number that another had: its database is older than "
    "the run (a backup, perhaps)"
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A lease, and the links to the services that own the run's fragments."""

    registration: Registration
    links: dict[int, Link]
    """By fragment."""
    epochs: dict[int, int]
    """By fragment: of the service that owns it."""
    initialised: frozenset[int]
    """Fragments that had a revision 0 when we came."""
    seqs: list[int]
    """By fragment: the largest that its service knows of this life; 0 where its number is new."""

    @property
    def settings(self) -> RunSettings:
        return self.registration.run.settings


def found_run(wish: Wish, ranks: Ranks, recall: Recall) -> RunView:
    """Find the run, or create it; on all ranks.

    Raises:
        CalledOff: ``recall`` was set, on any rank.
        RunConflict: the run has other settings than the given ones.
        LayoutMismatch: it keeps the job of another model.
        Unreachable: the control plane does not answer.
    """

    def found() -> dict[str, Any]:
        timeouts = (wish.settings or RunSettings()).timeouts
        run = _answered(wish, timeouts, recall, lambda client: _run(client, wish))
        wish.check_job(run.name, run.job)
        return run.model_dump(mode="json")

    return RunView.model_validate(unless_recalled(found, recall, ranks))


def register(
    wish: Wish, ranks: Ranks, timeouts: TimeoutSettings, fingerprint: str, recall: Recall
) -> Registration:
    """Ask for a lease in the run that was found, which has these ``timeouts``; on all ranks.

    Where the run has all the replicas that it may have it waits for a place.

    Raises:
        CalledOff: ``recall`` was set, on any rank. A lease that is on its way then runs out.
        RunConflict: the run has ended.
        LayoutMismatch: a replica of this name is at work on another model, and goes on.
        Unreachable: the control plane does not answer.
    """
    body = ReplicaRegister(
        replica=wish.replica,
        ranks=ranks.count,
        host=socket.gethostname(),
        pid=os.getpid(),
        fingerprint=fingerprint,
    )

    def ask(client: ControlClient) -> dict[str, Any]:
        try:
            return client.register(wish.run, body).model_dump(mode="json")
        except RunFull as full:
            if recall.is_set():
                raise CalledOff(CALLED_OFF) from None
            return {"full": full.message}

    def registered() -> dict[str, Any]:
        # If an answer is lost, the lease that it carried is fenced by the next.
        return _answered(wish, timeouts, recall, ask)

    has_said = False
    while True:
        told = unless_recalled(registered, recall, ranks)
        if "full" not in told:
            return Registration.model_validate(told)
        if ranks.first and not has_said:
            log.warning("replica.waits", why=told["full"], so="it joins when there is a place")
        has_said = True
        unless_recalled(lambda: recall.wait(PLACE_S), recall, ranks)


def open_run(
    wish: Wish, registration: Registration, ranks: Ranks, layout: Layout, recall: Recall
) -> Joined:
    """Open the run at all sync services at once; on all ranks. The links that it gives are open.

    Raises:
        CalledOff: ``recall`` was set, on any rank.
        LayoutMismatch: the run trains another model; the first difference is named.
        RunConflict: a service has lost its part of a run that others have gone on with.
        Unreachable: a service does not answer, or a fragment has none, or two.
    """
    timeouts = registration.run.settings.timeouts
    links = _Links(wish, timeouts)

    def ask(address: str) -> pb.OpenRunResponse:
        if recall.is_set():
            raise CalledOff(CALLED_OFF)
        return patiently(
            lambda: links.to(address).open_run(
                registration.run.name, registration.replica, registration.incarnation, layout
            ),
            timeouts.call_s,
            recall,
            outage=_sync_outage(timeouts.call_s, address),
        )

    def opened() -> dict[str, Any]:
        services = _services(wish, registration, recall)
        addresses = [service.address for service in services]
        asked = [in_background(lambda at=at: ask(at), "syncline-opening") for at in addresses]
        answers = {at: one.future.result() for at, one in zip(addresses, asked, strict=True)}
        owners = owners_of(layout, answers)
        states = [state for one in answers.values() for state in one.fragments]
        seqs = {str(state.fragment): state.last_seq for state in states}
        if registration.run.revision or any(s.revision or s.gradient_step for s in states):
            # Whoever trains has found revision 0 everywhere; but some were asked before others.
            for at in [at for at, one in answers.items() if _empty(one)]:
                answers[at] = ask(at)
                _check_nothing_lost(layout, at, answers[at])
        return {
            "owners": {str(number): address for number, address in owners.items()},
            "initialised": [
                s.fragment for one in answers.values() for s in one.fragments if s.initialised
            ],
            "epochs": {str(number): answers[at].epoch for number, at in owners.items()},
            "seqs": seqs,
            "seats": {one.address: (one.index, one.shards) for one in services},
        }

    try:
        told = unless_recalled(opened, recall, ranks)
        links.seats = {address: Seat(*seat) for address, seat in told["seats"].items()}
        owners = {int(number): links.to(address) for number, address in told["owners"].items()}
    except BaseException:
        links.close()  # ends a call on its way
        raise
    links.close(set(owners.values()))  # the others own no fragment
    if any(told["seqs"].values()) and ranks.first:
        log.warning("replica.number", why=GIVEN_BEFORE, so="its pushes go on after the last known")
    return Joined(
        registration=registration,
        links=owners,
        epochs={int(number): epoch for number, epoch in told["epochs"].items()},
        initialised=frozenset(told["initialised"]),
        seqs=[told["seqs"][str(number)] for number in range(len(layout.fragments))],
    )


def _empty(answer: pb.OpenRunResponse) -> list[int]:
    """The fragments of a service that have no revision yet."""
    return [state.fragment for state in answer.fragments if not state.initialised]


def _check_nothing_lost(layout: Layout, address: str, answer: pb.OpenRunResponse) -> None:
    """Look at a service of a run that has gone on.

    Raises:
        RunConflict: it has nothing of a fragment. To offer ours would mix two models.
    """
    for number in _empty(answer):
        raise RunConflict(
            f"The sync service at {address} has nothing of fragment {layout.fragments[number].name}"
            ", and the run has gone on: start the service on the folder (--data) that has the run, "
            "or start another run."
        )


class _Links:
    """One link to each address, for who opens a run, and who may give that up meanwhile."""

    def __init__(self, wish: Wish, timeouts: TimeoutSettings) -> None:
        self._wish, self._timeouts = wish, timeouts
        self.seats: dict[str, Seat] = {}
        """Of the services, by the address at which each was found."""
        self._links: dict[str, Link] = {}
        self._lock = Lock()
        self._closed = False

    def to(self, address: str) -> Link:
        """The link to the service at this address, made at the first call.

        Raises:
            CalledOff: they are closed.
        """
        with self._lock:
            if self._closed:
                raise CalledOff(CALLED_OFF)
            if address not in self._links:
                found = partial(self._elsewhere, address)
                self._links[address] = Link(address, self._timeouts, self._wish.token, found)
            return self._links[address]

    def _elsewhere(self, found_at: str, address: str) -> str | None:
        """Where the service listens by now that was ``found_at`` when the run was opened."""
        seat = self.seats.get(found_at)
        return seat and found_elsewhere(self._wish.control, self._wish.token, seat, address)

    def close(self, keep: Collection[Link] = ()) -> None:
        """Close all but ``keep``; from here on none is opened."""
        with self._lock:
            self._closed = True
        for link in self._links.values():
            if link not in keep:
                link.close()


def _answered(
    wish: Wish, timeouts: TimeoutSettings, recall: Recall, ask: Callable[[ControlClient], Told]
) -> Told:
    """Ask the control plane patiently."""
    client = ControlClient(wish.control, wish.token, timeouts.call_s)
    outage = _control_outage(wish, timeouts.connect_s)
    try:
        return patiently(lambda: ask(client), timeouts.connect_s, recall, outage=outage)
    finally:
        client.close()


def _run(client: ControlClient, wish: Wish) -> RunView:
    """Create the run, or adopt the one that is there."""
    if wish.settings is None:
        try:
            return client.run(wish.run)
        except RunUnknown:
            so = "it begins with the defaults, and ends when it is stopped: no token budget"
            log.warning("run.new", run=wish.run, so=so)
    body = RunCreate(name=wish.run, settings=wish.settings or RunSettings(), job=wish.job)
    try:
        return client.create_run(body)
    except RunConflict:
        there = client.run(wish.run)
        if wish.settings is not None:
            if _fixed(there.settings) != _fixed(wish.settings):
                raise
            # It differs only in what may change while a run goes on.
            why = f"{there.name} has other settings ({in_words(there.settings, wish.settings)})"
            log.warning("run.settings", why=why, so="this replica goes by the run's")
        return there


def _fixed(settings: RunSettings) -> dict[str, Any]:
    return settings.model_dump(exclude=set(LIVE))


def _services(wish: Wish, registration: Registration, recall: Recall) -> list[SyncEndpoint]:
    """All sync services; one that starts together with us is given a little time to show up."""
    with suppress(Unreachable):
        return all_alive(registration.sync_services, wish.control)
    timeouts = registration.run.settings.timeouts
    client = ControlClient(wish.control, wish.token, timeouts.call_s)
    control = _control_outage(wish, timeouts.call_s)
    sync = _sync_outage(timeouts.call_s, "all of them")

    def ask() -> list[SyncEndpoint]:
        with control.noted():
            services = client.sync_services()
        with sync.noted():
            return all_alive(services, wish.control)

    try:
        return patiently(ask, timeouts.call_s, recall)
    finally:
        client.close()


def _control_outage(wish: Wish, limit_s: float) -> Outage:
    so = f"waiting up to {limit_s:g} s for {wish.control}"
    return Outage("control", so, lambda: wish.control, tells_why=False)


def _sync_outage(limit_s: float, at: str) -> Outage:
    return Outage("sync", f"waiting up to {limit_s:g} s", lambda: at)
