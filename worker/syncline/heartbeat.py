"""The heartbeat: renews the lease from a thread of its own, and brings back the run's news.

A control plane that is away costs nothing: training goes on with what was last heard, and the
lease counts as lost only when the control plane says so. Decides nothing; the training thread
reads the news after each inner step.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from syncline.control import ControlClient
from syncline.outage import Outage
from syncline.pace import Pace, StepRate
from syncline_proto.errors import (
    LeaseLost,
    ReplicaUnknown,
    RunConflict,
    RunUnknown,
    SynclineError,
)
from syncline_proto.rest import Heartbeat, LossPoint, Progress, Registration, RunState
from syncline_proto.settings import RunSettings

POINTS_MAX = 1000
"""Points of a loss curve that wait for a heartbeat; past it the oldest are dropped."""

CLOSE_S = 5.0
"""How long a heartbeat on its way is waited for when the replica leaves."""

ENDED = (RunState.STOPPED, RunState.FINISHED)

REFUSALS = (LeaseLost, ReplicaUnknown, RunUnknown, RunConflict)
"""Answers after which no heartbeat will be taken; any other error may pass. So may a refusal of the
token: it was taken when the replica registered, and who started the control plane again may have
mistyped its own."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What the control plane last said."""

    settings: RunSettings
    settings_version: int
    run_state: RunState
    drain: bool = False
    step_share: float = 1.0
    """Of a round's inner steps, so many this replica is to make."""
    short: bool = False
    """Fewer replicas are alive than the run needs for a round."""
    lost: str | None = None
    """Why the lease is lost; None while it is held."""

    @property
    def ended(self) -> bool:
        return self.run_state in ENDED


class Pulse:
    """The heartbeat's thread.

    Invariants:
        - ``news`` is replaced whole, so any thread may read it;
        - a point of a loss curve leaves the queue only when a heartbeat that holds it is answered.
    """

    def __init__(
        self,
        client: ControlClient,
        registration: Registration,
        progress: Callable[[], Progress],
    ) -> None:
        """``client`` is this thread's own; ``progress`` is called on it before each heartbeat."""
        run = registration.run
        self.news = News(
            settings=run.settings, settings_version=run.settings_version, run_state=run.state
        )
        self._client, self._registration, self._progress = client, registration, progress
        self._points: deque[LossPoint] = deque(maxlen=POINTS_MAX)
        self.pace: float | None = None
        """Tokens per second, as measured between heartbeats; None before it is known."""
        self._pace, self._step_rate = Pace(), StepRate()
        self._outage = Outage("control", "training goes on without it", lambda: client.url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="syncline-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, point: LossPoint) -> None:
        self._points.append(point)

    def close(self, tell: bool) -> None:
        """Stop the thread; ``tell``: with a last heartbeat for what is still to be told.

        A heartbeat that a silent control plane holds up is left to its thread.
        """
        self._stop.set()
        self._thread.join(CLOSE_S)
        try:
            held_up = self._thread.is_alive()
            if tell and self.news.lost is None and not (self._outage.is_on or held_up):
                self._send()
        finally:
            self._client.close()

    def refusal(self, client: ControlClient) -> str | None:
        """Ask on another thread's client why the lease is gone; None if that cannot be learnt."""
        me = self._registration
        body = Heartbeat(incarnation=me.incarnation, progress=self._progress())
        try:
            client.heartbeat(me.run.name, me.replica, body)
        except REFUSALS as error:
            return error.message
        except SynclineError:
            return None  # it is away
        return None

    def _beat(self) -> None:
        try:
            while self.news.lost is None:
                began = time.monotonic()
                self._send()
                # An answer that did not come has been waited for: the next heartbeat is late by it,
                # and the last one that was heard may be most of a lease ago.
                waited_s = time.monotonic() - began if self._outage.is_on else 0.0
                if self._stop.wait(max(0.0, self._registration.heartbeat_s - waited_s)):
                    return
        except Exception as fault:
            if self._stop.is_set():
                return  # its client was closed under it
            # The lease will run out unheard; the training thread must not train on without it.
            log.exception("heartbeat.failed")
            self.news = replace(self.news, lost=f"the heartbeat failed: {fault!r}")

    def _send(self) -> None:
        points = list(self._points)
        me = self._registration
        progress = self._progress()
        pace = self.pace = self._pace.of(progress)
        told = {"steps_per_second": self._step_rate.of(progress)}
        if progress.tokens_per_second is None:  # the loop's own goes before
            told["tokens_per_second"] = pace
        progress = progress.model_copy(update=told)
        body = Heartbeat(incarnation=me.incarnation, progress=progress, points=points)
        try:
            answer = self._client.heartbeat(me.run.name, me.replica, body)
        except REFUSALS as error:
            self._outage.answered()
            self._refused(error)
            return
        except SynclineError as error:
            self._outage.missed(error)  # an answer of no use is none
            return
        self._outage.answered()
        for point in points:
            if self._points and self._points[0] is point:
                self._points.popleft()
        self.news = replace(
            self.news,
            settings=answer.settings,
            settings_version=answer.settings_version,
            run_state=answer.run_state,
            drain=answer.drain,
            step_share=answer.step_share,
            short=answer.replicas_alive < answer.settings.min_replicas,
        )

    def _refused(self, error: SynclineError) -> None:
        """The lease is gone: because the run has ended, or for good."""
        try:
            view = self._client.run(self._registration.run.name)
        except SynclineError:
            view = None
        if view is not None and view.state in ENDED:
            self.news = replace(self.news, run_state=view.state)
        else:
            self.news = replace(self.news, lost=error.message)
