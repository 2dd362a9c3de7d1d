"""The systems of one run of ``round.py``: started, given their turns, looked at, and stopped.

Knows what a round's result may be off by, and nothing of what is made of its seconds.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import systems
from disk import StillBusy, wait_until_removed, wait_until_written
from syncline.launch.ports import free_ports
from syncline.launch.processes import Crew, Process, describe_exit
from turns import Referee, Round, RoundFailed

OFF_MAX = {"fp32": 1e-3, "bf16": 0.1, "int8": 0.1, "int4": 0.3}
"""By codec: how far off a result may be, in distances that the model moves. Top-k is not here: one
round of it is no average, since most of it goes into later pushes."""
CODECS = tuple(OFF_MAX)
PEER_OFF_MAX = {"gloo": 1e-3, "torchft": 1e-3, "hivemind": 0.05, "flower": 1e-3}
OFF_TURNS_MAX = 2
"""Of a peer beside which ours takes its turns: those in which its result was off do not count.
hivemind's has been, once in some hundred rounds; why is not known."""
OURS, DURABLE = "syncline", "syncline-durable"
SLOW = 3.0
"""A peer whose rounds take so many times ours is a slow one; far from any ratio that is asked for,
else a life in which ours are quick would count fewer rounds."""
PAUSE_S = 0.4
"""After each round, whosever: what a system does a moment after it, as our services tell of it, is
in nobody else's round, and each begins from the same rest."""
Rounds = dict[str, list[Round]]
"""By system."""


class ResultOff(RoundFailed):
    """A round came to its end, and to a result that is off."""


class Contest:
    """The systems of one run of the benchmark, and their rounds."""

    def __init__(self, scene: systems.Scene, crew: Crew, referee: Referee, codec: str) -> None:
        self._scene, self._crew, self._referee = scene, crew, referee
        self._ours_off_max = OFF_MAX[codec]
        self._processes: dict[str, list[Process]] = {}
        self._ours_done = 0
        """Rounds of ours that publish before they write; the newest revision has this number."""
        self.failed: dict[str, str] = {}
        """Peers that did not come through, and why."""

    def start_ours(self, settings: dict[str, dict[str, Any]], shards: int) -> None:
        """The services, and the replicas of each run; wait until they are ready."""
        (control,) = free_ports(1)
        commands = systems.syncline_services(self._scene, control, shards)
        services = [self._crew.start(command) for command in commands]
        for system, its in settings.items():
            replicas = systems.syncline_replicas(self._scene, system, control, its)
            self._processes[system] = [*services, *map(self._crew.start, replicas)]
        for system in settings:
            self._referee.wait(system, lambda system=system: self._see_alive(system))
            _say(f"{system} is ready.")

    def _start_peer(self, peer: str) -> bool:
        """Start a peer, and wait until it is ready; or know why it is not."""
        commands = systems.PEERS[peer](self._scene)
        self._processes[peer] = [self._crew.start(command) for command in commands]
        try:
            self._referee.wait(peer, lambda: self._see_alive(peer))
            _say(f"{peer} is ready.")
            return True
        except RoundFailed as error:
            self._give_up(peer, error)
            return False

    def beside(self, peer: str | None, repeats: int, enough: int) -> Rounds:
        """Rounds of ours and of a peer in turns, so many each; a first one does not count.

        ``enough`` are enough beside a slow peer, and of one that goes no further. Nobody but these
        two is there: what waits for its turn has threads and memory too.

        Raises:
            RoundFailed: in a round of ours; a peer's failure is remembered.
        """
        if peer is not None and not self._start_peer(peer):
            return {}
        there = [name for name in self._processes if name in (OURS, DURABLE, peer)]
        rounds: Rounds = {name: [] for name in there}
        off_turns = 0
        for repeat in range(repeats + 1):
            taken = self._turn(there, peer)
            while isinstance(taken, ResultOff) and off_turns < OFF_TURNS_MAX:
                off_turns += 1
                _say(f"That turn does not count. {taken}")
                taken = self._turn(there, peer)
            if isinstance(taken, RoundFailed):
                assert peer is not None
                if repeat <= enough:
                    self._give_up(peer, taken)
                    return {}
                _say(f"{peer} goes no further, and its rounds count. {taken}")
                break
            for system, its in taken.items():
                rounds[system].append(its)
            took = ", ".join(f"{name} {its.seconds:.2f}" for name, its in taken.items())
            _say(f"Round {repeat} of {repeats}, in seconds: {took}")
            if (
                repeat >= enough
                and peer is not None
                and is_slow(rounds[peer][1:], rounds[OURS][1:])
            ):
                break
        if peer is not None:
            self._stop(peer)
        return {name: its[1:] for name, its in rounds.items()}

    def _turn(self, there: list[str], peer: str | None) -> dict[str, Round] | RoundFailed:
        """A round of each; or why the peer did none.

        Raises:
            RoundFailed: in a round of ours.
        """
        taken: dict[str, Round] = {}
        for system in there:
            try:
                taken[system] = self._round(system)
            except RoundFailed as error:
                if system != peer:
                    raise
                return error
        return taken

    def _round(self, system: str) -> Round:
        done = self._referee.round(system, lambda: self._see_alive(system))
        off_max = PEER_OFF_MAX.get(system, self._ours_off_max)
        if system == OURS:
            self._ours_done += 1
        if system in (OURS, DURABLE):
            self._wait_for_the_disk()
        time.sleep(PAUSE_S)
        if not done.off <= off_max:
            raise ResultOff(
                f"The result of {system} is off by {done.off:.3g} of what the round should have "
                f"moved, over {off_max:g}."
            )
        return done

    def _wait_for_the_disk(self) -> None:
        """What was published first is written, and what is old removed, in nobody else's round.

        Raises:
            RoundFailed: it is not.
        """
        folder = self._scene.folder
        try:
            wait_until_written(folder, f"store-*/runs/{OURS}/*/head.json", self._ours_done)
            wait_until_removed(folder, "store-*/runs/*/*/head.json")
        except StillBusy as error:
            raise RoundFailed(str(error)) from error

    def _give_up(self, peer: str, error: RoundFailed) -> None:
        self.failed[peer] = str(error)
        _say(f"{peer} is left out. {error}")
        self._stop(peer)

    def _stop(self, peer: str) -> None:
        for process in self._processes.pop(peer):
            self._crew.remove(process)

    def _see_alive(self, system: str) -> None:
        for process in self._processes[system]:
            if process.exit_code not in (None, 0):
                words = process.last_words(1) or ["its log is empty"]
                raise RoundFailed(
                    f"{process.name} ended with {describe_exit(process.exit_code)}: "
                    f"{words[0].strip()}"
                )


def is_slow(peers: list[Round], ours: list[Round]) -> bool:
    """Whether a peer takes ``SLOW`` times as long, or longer; of rounds that count."""
    theirs_s, ours_s = (median(one.seconds for one in its) for its in (peers, ours))
    return theirs_s >= SLOW * ours_s


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
