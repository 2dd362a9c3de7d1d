"""A run whose replicas are killed again and again: what of their training counts, and who waits.

Four replicas train at a fixed pace on leased data, with a quorum of three and a lease of 3 s. One
of them is killed with SIGKILL every minute or so, at a random instant, and started again at once.
The last line is one line of JSON:

    {"efficiency", "longest_wait_s", "lease_s", "tokens_lost", "tokens_twice", "tokens_torn",
     "kills", "compute_share", "late", "revisions", "committed_tokens", "minutes", "seed"}

``efficiency``: tokens that were committed, over what the processes that were up could have trained
at their pace; a process is up from when it is started, so what it takes to load counts against it.
``longest_wait_s``: the longest that any step of a replica that lived took beyond its pace, whatever
it waited for. Each replica notes by itself which of its pushes were answered ACCEPTED, and of how
many steps they are: ``tokens_lost`` is what of these no round names, by every revision's header,
and what those name and the service's count or the ledger of data lacks; ``tokens_twice`` what any
of them has more. Nobody knows the answer to a push that a kill cut off, the last of that life: it
may count or not. ``tokens_torn``: of such last pushes, what is in some fragments alone; the ledger
gives it to others. ``late`` are pushes that counted with an age. ``compute_share`` is what of the
processors that it may use all of it used, who was killed included.

    python benchmarks/storm.py [--minutes M] [--every SECONDS] [--seed N]

Asked are an efficiency of 0.9 at least, a longest wait of the lease and a second at most, no token
lost or twice, and a compute_share of 0.6 at most: a sentence and exit code 1 say what is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import systems
from accounts import Life, Pushes, accounts
from answered import answered
from asked import at_least
from network import network
from paced import LOOK_S, Failed, check_well, processors, tell, wait_until
from peers.paced_replica import cpu_s
from peers.stormed_replica import ANSWERS, BATCH
from syncline.launch.ports import free_ports
from syncline.launch.processes import Command, Crew, Process
from watched import Watch, addresses

RUN, REPLICAS, LEASE_S, STEP_S, EVERY, LENGTH = "storm", 4, 3.0, 0.1, 10, 32
SETTINGS: dict[str, Any] = {
    "strategy": "diloco",
    "sync_every": EVERY,
    "overlap_steps": 2,
    "quorum": REPLICAS - 1,
    "expected_replicas": REPLICAS,
    "timeouts": {"lease": LEASE_S},
}
PARAMETERS, SEQUENCES = 100_000, 10_000_000
STEP_TOKENS = BATCH * LENGTH
EFFICIENCY_MIN, COMPUTE_MAX, GRACE_S = 0.9, 0.6, 1.0
BEGIN_S, END_S, SETTLE_S = 120.0, 60.0, 3.0


@dataclass
class Slot:
    """One replica's name, and the processes that have borne it."""

    command: Command
    told: Path
    process: Process
    started_s: float
    up_s: float = 0.0
    """Of processes that have ended, since the storm began."""
    waits_s: list[float] = field(default_factory=list[float])
    """The longest of each life."""

    def up_until(self, now_s: float) -> float:
        """How long there was a process, since the storm began."""
        return self.up_s + now_s - self.started_s

    def words(self) -> dict[str, Any]:
        """How the process says that it stands; empty before its first step."""
        with suppress(FileNotFoundError):
            return json.loads(self.told.read_text())
        return {}


def main() -> None:
    given = options().parse_args()
    tell(lambda: measured(given), shortfall)


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(
        description="A run whose replicas are killed again and again.",
        epilog="example: python benchmarks/storm.py --minutes 3 --every 20",
    )
    parser.add_argument("--minutes", type=at_least(1), default=15)
    parser.add_argument("--every", type=at_least(1), default=60, help="seconds, on average")
    parser.add_argument("--seed", type=at_least(0), default=0)
    return parser


def shortfall(result: dict[str, Any]) -> str | None:
    """What is worse than asked: one sentence, or None."""
    if result["compute_share"] > COMPUTE_MAX:
        used = f"compute_share is {result['compute_share']:.3f}, over {COMPUTE_MAX}"
        return f"{used}: replicas and services take each other's processors."
    limit = result["lease_s"] + GRACE_S
    over = {
        f"efficiency is {result['efficiency']:.3f}, under {EFFICIENCY_MIN}": (
            result["efficiency"] < EFFICIENCY_MIN
        ),
        f"the longest wait is {result['longest_wait_s']:.2f} s, over {limit:g}": (
            result["longest_wait_s"] > limit
        ),
        f"{result['tokens_lost']} tokens are lost": result["tokens_lost"] != 0,
        f"{result['tokens_twice']} tokens count twice": result["tokens_twice"] != 0,
    }
    said = [words for words, is_so in over.items() if is_so]
    return f"The storm did harm: {'; '.join(said)}." if said else None


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Take all figures.

    Raises:
        Failed: a process has ended that was not killed, or a revision was not seen.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syncline-storm-")))
        scene = systems.Scene(
            network=stack.enter_context(network("loopback", REPLICAS + 1)),
            participants=REPLICAS,
            parameters=PARAMETERS,
            folder=folder,
            gate=folder / "no-gate",
        )
        crew = stack.enter_context(Crew())
        (control,) = free_ports(1)
        services = [crew.start(one) for one in systems.syncline_services(scene, control, shards=1)]
        where = {
            "control": scene.at(scene.server, control),
            "run": RUN,
            "settings": json.dumps(SETTINGS),
            "step_s": str(STEP_S),
            "sequences": str(SEQUENCES),
            "length": str(LENGTH),
            "told": str(folder),
        }
        api = stack.enter_context(systems.api_of(where["control"]))
        storm = Storm(crew, services, random.Random(given.seed))
        storm.await_one(lambda: bool(addresses(api)), BEGIN_S, "the sync service is there")
        watch = stack.enter_context(Watch(addresses(api)[0], systems.TOKEN, RUN))
        replicas = systems.replicas_of(scene, "replica", "peers.stormed_replica", where)
        storm.start(replicas, folder)
        return storm.measure(watch, api, given)


def efficiency(tokens: int, up_s: float) -> float:
    """What was committed, of what processes that never wait train in so many seconds, together."""
    return tokens / (up_s / STEP_S * STEP_TOKENS)


def killed(books: Sequence[Pushes]) -> set[Life]:
    """The lives after which the same replica has had another: only a kill ends one here."""
    lives = {life for book in books for life, _ in book}
    last = dict(sorted(lives))
    return {(name, number) for name, number in lives if number < last[name]}


class Storm:
    """The replicas while they are killed, and what comes of it."""

    def __init__(self, crew: Crew, services: list[Process], chance: random.Random) -> None:
        self._crew, self._services, self._chance = crew, services, chance
        self._slots: list[Slot] = []
        self._kills = 0

    def start(self, commands: list[Command], folder: Path) -> None:
        """Start all replicas, and return when each is in a round."""
        self._slots = [
            Slot(command, folder / command.name, self._crew.start(command), time.monotonic())
            for command in commands
        ]
        self.await_all(lambda slot: slot.words().get("revision", 0) > 0, BEGIN_S, "began to train")

    def measure(self, watch: Watch, api: httpx.Client, given: argparse.Namespace) -> dict[str, Any]:
        """Let the storm blow, then calm down, and compare all counts."""
        began_s, cpu_began_s = time.monotonic(), cpu_s(os.getpid())
        for slot in self._slots:
            slot.started_s = began_s
        tokens_began = watch.last.committed_tokens
        self._blow(began_s + 60.0 * given.minutes, given.every)
        ended_s, tokens = time.monotonic(), watch.last.committed_tokens - tokens_began
        compute_share = (cpu_s(os.getpid()) - cpu_began_s) / (ended_s - began_s)
        up_s = sum(slot.up_until(ended_s) for slot in self._slots)
        self._calm()
        watch.settle(SETTLE_S)
        if missed := next((one.missed for one in watch.fragments if one.missed), ""):
            raise Failed(f"Not every revision was seen: {missed}")
        told = [slot.told.with_suffix(ANSWERS) for slot in self._slots]
        own = answered(told, len(watch.fragments), STEP_TOKENS)
        counted = [one.pushes for one in watch.fragments]
        found = accounts(
            own,
            counted,
            [one.committed_tokens for one in watch.fragments],
            api.get(f"/runs/{RUN}/data").json()["trained"] * LENGTH,
            killed([*own, *counted]),
        )
        return {
            "efficiency": efficiency(tokens, up_s),
            "longest_wait_s": max(max(slot.waits_s) for slot in self._slots),
            "lease_s": LEASE_S,
            "tokens_lost": found.lost,
            "tokens_twice": found.twice + sum(one.twice_tokens for one in watch.fragments),
            "tokens_torn": found.torn,
            "kills": self._kills,
            "compute_share": compute_share / processors(),
            "late": watch.last.late,
            "revisions": watch.last.revision,
            "committed_tokens": watch.last.committed_tokens,
            "minutes": given.minutes,
            "seed": given.seed,
        }

    def _blow(self, until_s: float, every_s: float) -> None:
        """Kill one after another."""
        at_s = time.monotonic() + self._chance.expovariate(1.0 / every_s)
        while (now_s := time.monotonic()) < until_s:
            check_well(self._processes)
            if now_s >= at_s:
                self._kill(self._chance.choice(self._slots))
                at_s = now_s + self._chance.expovariate(1.0 / every_s)
            time.sleep(LOOK_S)

    def _kill(self, slot: Slot) -> None:
        """Kill a replica's process, be it in the midst of its start, and start another at once."""
        words = slot.words()
        slot.waits_s.append(words.get("longest_wait_s", 0.0))
        slot.told.unlink(missing_ok=True)
        slot.up_s = slot.up_until(time.monotonic())
        self._crew.remove(slot.process)  # its guard kills it with SIGKILL
        slot.process, slot.started_s = self._crew.start(slot.command), time.monotonic()
        self._kills += 1
        said = f"{slot.command.name} was killed after {words.get('steps', 0)} steps"
        print(f"kill {self._kills}: {said}", file=sys.stderr, flush=True)

    def _calm(self) -> None:
        """Let all replicas leave, once all train: a process that starts knows no SIGTERM yet."""
        self.await_all(lambda slot: slot.words().get("steps", 0) > 0, BEGIN_S, "trains again")
        for slot in self._slots:
            slot.process.terminate()
        self.await_all(lambda slot: slot.process.exit_code is not None, END_S, "left")
        for slot in self._slots:
            slot.waits_s.append(slot.words().get("longest_wait_s", 0.0))

    def await_all(self, is_so: Callable[[Slot], bool], limit_s: float, what: str) -> None:
        """
        Raises:
            Failed: it takes too long, or a process has ended badly.
        """
        self.await_one(lambda: all(map(is_so, self._slots)), limit_s, f"every replica {what}")

    def await_one(self, is_so: Callable[[], bool], limit_s: float, what: str) -> None:
        """As ``await_all``, of anything."""
        wait_until(is_so, limit_s, what, self._processes)

    @property
    def _processes(self) -> list[Process]:
        return [*self._services, *(slot.process for slot in self._slots)]


if __name__ == "__main__":
    main()
