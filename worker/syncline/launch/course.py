"""How a launch goes: what each replica's end means, when the time is up, and what came of it all.

Asks the control plane and says what happens; starts nothing itself (``keeper``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from syncline.launch import commands
from syncline.launch.client import OperatorClient
from syncline.launch.keeper import HOPELESS, Keeper
from syncline.launch.plan import Launch
from syncline.launch.probes import own_error, own_words
from syncline.launch.view import ReplicaNow, ReplicaStage, Result, Screen, View, result
from syncline.launch.words import rounds_by_time
from syncline_proto.errors import (
    CalledOff,
    ConfigError,
    ProcessFailed,
    RunConflict,
    SynclineError,
)
from syncline_proto.rest import ReplicaState

STATE_S = 1.0
"""Between two questions to the control plane."""

UNDER_WAY = ("starting", "training")
HELD = (ReplicaState.ALIVE, ReplicaState.DRAINING)


class Course:
    """Follows the replicas and the run; ``view`` is what is known of them."""

    def __init__(
        self, launch: Launch, view: View, client: OperatorClient, keeper: Keeper, screen: Screen
    ) -> None:
        self._launch, self._view, self._client = launch, view, client
        self._keeper, self._screen = keeper, screen
        self._failure: SynclineError | None = None
        """Of whoever failed first."""
        self._said_by: dict[str, str] = {}
        """Which replica was the first to end with these words: all are told them once."""
        self._has_said_when = False
        """When rounds come, in a run by time."""
        self._is_cut_short = False
        """The time was up before anybody trained."""
        self._wanted: int | None = None
        """How many replicas the run should have, as far as that was seen to."""
        self._leaving: set[str] = set()
        """Replicas that were too many, and have not ended yet."""
        self._state_at = 0.0
        self._began = time.monotonic()

    @property
    def is_under_way(self) -> bool:
        return any(now.stage in UNDER_WAY for now in self._view.replicas.values())

    def look(self) -> None:
        """Look once at every replica and at the run."""
        for name, lines, code in self._keeper.news():
            now = self._view.replicas[name]
            now.hear(lines)
            if code is not None and now.stage in UNDER_WAY:
                self._replica_ended(now, code)
        if time.monotonic() - self._state_at > STATE_S:
            self.ask_state()
            self._say_when()
            self._stop_if_due()
            self._scale()

    def conclude(self, logs: Path) -> Result:
        """Return how it ended, once nobody is under way.

        Raises:
            ProcessFailed: no replica came to its end and there is no revision to show for it.
            SynclineError: the settings, files or model were wrong for every replica.
        """
        self.ask_state()
        seconds = time.monotonic() - self._began
        ended = result(self._view, str(self._launch.folder), seconds)
        failure = self._failure
        if self._is_cut_short and (ended is None or not ended.revision):
            raise ProcessFailed(
                "The run was stopped by --seconds-limit before training began, and is over; allow "
                "more seconds, under another name (--set run.name=NAME)."
            )
        if ended is None:
            raise failure or ProcessFailed(
                f"The replicas left before the run's end; their logs are in {logs}."
            )
        over = ended.has_ended or (failure is not None and failure.exit_code in HOPELESS)
        if failure is not None and over and not ended.replicas:
            raise failure  # the same command would not go on
        return ended

    def ask_state(self) -> None:
        """Ask how the run stands; where nobody can say, the last answer stands."""
        self._state_at = time.monotonic()
        try:
            self._view.state = self._client.run(self._view.run)
        except SynclineError:
            return  # not created yet, or the control plane is on its way back

    def _say_when(self) -> None:
        """By time nothing may seem to happen for long: say once that this is so."""
        state = self._view.state
        if state is None or self._has_said_when:
            return
        self._has_said_when = True
        if state.settings.sync_seconds is not None and not self._view.has_ended:
            self._screen.say(rounds_by_time(state.settings.sync_seconds))

    def _scale(self) -> None:
        """Once somebody wants more replicas or fewer: start some here, or let the newest leave."""
        state = self._view.state
        wanted = state.replicas_wanted if state is not None else None
        if wanted == self._wanted or self._is_cut_short or self._view.has_ended:
            return
        try:
            known = self._client.replicas(self._view.run)
        except SynclineError:
            return  # asked again with the next question
        self._wanted = wanted
        if wanted is None:
            return
        ours = self._view.replicas
        elsewhere = {one.replica for one in known if one.state in HELD and one.replica not in ours}
        under_way = {name for name, now in ours.items() if now.stage in UNDER_WAY}
        here = [name for name in ours if name in under_way - self._leaving]
        many = "1 replica is" if wanted == 1 else f"{wanted} replicas are"
        for name in here[max(0, wanted - len(elsewhere)) :]:
            self._screen.say(f"{name} leaves: {many} wanted.")
            self._keeper.end_replica(name)
            self._leaving.add(name)
        if (lacking := wanted - len(elsewhere) - len(here)) > 0:
            kicked = {one.replica for one in known if one.state is ReplicaState.KICKED}
            # By the name of one that trains elsewhere, a new one would put an end to it.
            names = commands.replica_names(lacking, kicked | under_way | elsewhere)
            self._start(names, many)

    def _start(self, names: Sequence[str], many: str) -> None:
        """Start replicas that are wanted; whoever asked for too many must not end the others."""
        try:
            self._keeper.start_replicas(names)
        except ConfigError as refused:
            self._screen.say(f"{many} wanted, and none is started. {refused.message}")
            return
        self._view.replicas.update({name: ReplicaNow(name=name) for name in names})
        self._screen.say(f"Starting {', '.join(names)}: {many} wanted.")

    def _replica_ended(self, now: ReplicaNow, code: int) -> None:
        """Take note of a replica's end; start it again where that helps."""
        name, process = now.name, self._keeper.replicas[now.name]
        if self._is_cut_short or name in self._leaving:
            self._leaving.discard(name)
            now.stage = "ended"
            return
        if code in (0, CalledOff.exit_code):
            now.stage = "ended"
            if now.ending is None:
                self._screen.say(f"{name} has left.")
            return
        if code == RunConflict.exit_code and self._came_too_late():
            now.stage = "ended"
            self._failure = self._failure or own_error(process)
            self._screen.say(f"{name} was not ready before the run's end.")
            return
        if code not in HOPELESS and self._is_kicked(name):
            said = f"{name} was kicked, so it is not started again"
            self._failure = self._failure or ProcessFailed(f"{said}.")
            self._give_up(now, "kicked", said)
            return
        failure = own_error(process)
        # What a person can put right ends the launch in its own words, all else with the log's end.
        self._failure = self._failure or (failure if code in HOPELESS else process.failure())
        if code not in HOPELESS and self._keeper.restarted(name, code):
            now.stage = "starting"
            return
        words = own_words(process)
        first = self._said_by.setdefault(words, name) if words else name
        same = f"{name} ended as {first} did (log: {process.command.log})"
        self._give_up(now, "failed", failure.message if first == name else same)

    def _give_up(self, now: ReplicaNow, stage: ReplicaStage, said: str) -> None:
        """Start the replica no more; say why, and whether others go on."""
        now.stage = stage
        alive = self._keeper.alive
        rest = f"the other {alive} go on" if alive > 1 else "the other one goes on"
        self._screen.say(f"{said} — {rest}." if alive else said)

    def _is_kicked(self, name: str) -> bool:
        """Whether an operator took the replica's name away: starting it again would be in vain."""
        try:
            known = self._client.replicas(self._view.run)
        except SynclineError:
            return False  # whoever starts it again meanwhile will hear it, and ask again
        return any(one.replica == name and one.state is ReplicaState.KICKED for one in known)

    def _came_too_late(self) -> bool:
        """Whether the run has ended, which is why it takes nobody in any more."""
        self.ask_state()
        return self._view.has_ended

    def _stop_if_due(self) -> None:
        limit = self._launch.seconds_limit
        if limit is None or self._is_cut_short or self._view.has_ended:
            return
        if time.monotonic() - self._began <= limit:
            return
        self._screen.say(f"{limit:.0f} seconds are over; stopping the run.")
        if self._view.state is not None:
            self._stop()
            if not self._view.has_ended:
                return  # asked again with the next question
        if not any(replica.begun for replica in self._view.replicas.values()):
            # They may load for long yet, and the run would refuse them.
            self._is_cut_short = True
            self._keeper.end_replicas()

    def _stop(self) -> None:
        try:
            self._view.state = self._client.move_run(self._view.run, "stop")
        except RunConflict:
            self.ask_state()  # it has just come to its end by itself
        except SynclineError:
            return
