"""A run of four replicas on hosts of their own, and what became of every inner step that they made.

The store says what is committed; the control plane must have been told the same, each round once.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import safe_open

from syncline_proto.ranges import Range, common, count, joined
from syncline_sync.core.record import Saved
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.saved import saved_from_json
from syncline_testing.afar import Afar, afar
from syncline_testing.apart import Apart
from syncline_testing.replicas import STEP_TOKENS, WIDTH
from syncline_testing.spread import spread
from syncline_testing.waiting import wait_until

FRAGMENTS = range(4)
LEASE_S, DEADLINE_S = 6.0, 8.0
SETTINGS: dict[str, Any] = {
    "strategy": "local-sgd",
    "sync_every": 8,
    "codec": {"up": "fp32", "down": "fp32"},
    "expected_replicas": 4,
    "timeouts": {"lease": LEASE_S, "round_deadline": DEADLINE_S},
}
"""No push is excluded, so all that was done must be in."""
WAIT_S = 40.0
TRIES = 20
"""To open a file before it is swept."""

Life = tuple[str, int]
"""A replica and its incarnation."""


class Course:
    """A run under way."""

    def __init__(self, apart: Apart, run: str, replicas: list[Afar], waits: bool) -> None:
        self._apart, self._run, self._waits = apart, run, waits
        self.replicas = replicas
        self.whole = replicas[0]
        """Whom nobody cuts off."""

    def states(self) -> dict[str, tuple[str, int]]:
        """Replica -> (its state, its incarnation), by name."""
        views = {view["replica"]: view for view in self._get("/replicas")}
        return {name: (views[name]["state"], views[name]["incarnation"]) for name in sorted(views)}

    def trained(self) -> int:
        """The inner steps of the replica that nobody cuts off, as its heartbeats tell."""
        views = {view["replica"]: view for view in self._get("/replicas")}
        return views[self.whole.name]["progress"]["inner_step"]

    def newest(self) -> tuple[str, set[str]]:
        """Why the newest round of the last fragment closed, and whose pushes it has.

        Where no round waits: whose the last ``len(self.replicas)`` have.
        """
        rounds = [told for told in self._rounds() if told["fragment"] == FRAGMENTS[-1]]
        last = rounds[-1 if self._waits else -len(self.replicas) :]
        if not last:
            return "", set()
        return last[-1]["closed_by"], {c["replica"] for one in last for c in one["contributions"]}

    def everyone_is_in(self) -> None:
        """Wait for a round that has the pushes of all."""
        names = {replica.name for replica in self.replicas}
        wait_until(lambda: self.newest()[1] == names, WAIT_S, "all are in a round", self.newest)

    def only_the_whole_is_in(self) -> str:
        """Wait for a round of nobody else; why it closed."""
        names = {self.whole.name}
        wait_until(lambda: self.newest()[1] == names, WAIT_S, "a round without them", self.newest)
        return self.newest()[0]

    def goes_on(self) -> None:
        """Wait for two more revisions."""
        now = self._get("")["revision"]
        wait_until(lambda: self._get("")["revision"] >= now + 2, WAIT_S, "rounds go on")

    def ends(self) -> dict[str, list[int]]:
        """Let all push what they have, and leave; by replica, the inner steps of each life."""
        for replica in self.replicas:
            self._apart.post(f"/runs/{self._run}/replicas/{replica.name}/drain")
        return {replica.name: replica.ended() for replica in self.replicas}

    def takes_in(self, steps: int) -> None:
        """Wait until so many are committed: who left may have been late for its last round.

        Its push counts in the next one, which nobody waits with it for.
        """
        everything = [steps * STEP_TOKENS] * len(FRAGMENTS)
        wait_until(lambda: self._stored() == everything, WAIT_S, "all is in", self._stored)

    def counted(self) -> list[Counter[Life]]:
        """By fragment: the inner steps of each life that are in its rounds.

        Sees that each revision was told once, and that it is what was told that is stored.
        """
        kept = self._stored()
        wait_until(lambda: self._get("")["committed_tokens"] == kept[-1], WAIT_S, "all is told")
        steps: list[Counter[Life]] = [Counter() for _ in FRAGMENTS]
        revisions: list[list[int]] = [[] for _ in FRAGMENTS]
        tokens = [0 for _ in FRAGMENTS]
        for told in self._rounds():
            number = told["fragment"]
            revisions[number].append(told["revision"])
            for c in told["contributions"]:
                tokens[number] += c["tokens"]
                if told["kind"] == "pseudo-gradient":
                    steps[number][c["replica"], c["incarnation"]] += c["inner_steps"]
        assert all(told == list(range(len(told))) for told in revisions)
        assert tokens == kept
        return steps

    def brought_in(self) -> int:
        """How many sequences of leased data are trained; see that store and ledger have the same.

        And that none is in two pushes of a fragment.
        """
        trained = [spread(saved.trained) for saved in self._saved()]
        pushed: list[list[Range]] = [[] for _ in FRAGMENTS]
        for told in self._rounds():
            pushed[told["fragment"]] += [
                Range(*range_) for c in told["contributions"] for range_ in c["data"]
            ]
        assert [count(ranges) for ranges in pushed] == [count(ranges) for ranges in trained]
        assert [joined(ranges) for ranges in pushed] == trained
        view = self._get("/data")
        in_all = functools.reduce(common, trained)
        assert (view["trained"], view["excluded"], view["leased"]) == (count(in_all), 0, 0)
        return view["trained"]

    def _stored(self) -> list[int]:
        """By fragment: the tokens that are committed."""
        return [saved.committed_tokens for saved in self._saved()]

    def _saved(self) -> list[Saved]:
        return [
            _committed(self._apart.store / "runs" / self._run / f"{number:05}", number)
            for number in FRAGMENTS
        ]

    def _rounds(self) -> list[dict[str, Any]]:
        return self._get("/rounds?limit=2000")

    def _get(self, path: str) -> Any:
        return self._apart.get(f"/runs/{self._run}{path}")


def _committed(folder: Path, number: int) -> Saved:
    """What a fragment's head names as its newest; a newer file may be half written.

    It goes two rounds later, which may be while it is opened.
    """
    store = FragmentStore(folder, Place(run="", fragment=number, layout="", numel=0))
    for _ in range(TRIES):
        entries = store.head()
        assert entries is not None, f"{folder} has no head"
        newest = next(entry for entry in entries if not entry.alone)
        with suppress(FileNotFoundError), safe_open(folder / newest.file, "np") as file:
            return saved_from_json(file.metadata()["saved"])
    raise AssertionError(f"{folder}: no file was there long enough")


@contextmanager
def course(
    apart: Apart,
    folder: Path,
    run: str,
    width: int = WIDTH,
    leased: bool = False,
    how: Mapping[str, Any] | None = None,
) -> Iterator[Course]:
    """Within it four replicas train a model so wide; where a test fails, their logs are shown.

    ``how``: settings besides those of all courses.
    """
    settings = {**SETTINGS, **(how or {})}
    with ExitStack() as started:
        replicas = [
            started.enter_context(afar(apart, folder, number, run, settings, width, leased))
            for number in range(4)
        ]
        try:
            wait_until(lambda: _is_there(apart, run), WAIT_S, "the run is there")
            under_way = Course(apart, run, replicas, not settings.get("asynchronous"))
            under_way.everyone_is_in()
            yield under_way
        except BaseException:
            print(*(f"{replica.name}:\n{replica.said()}" for replica in replicas), sep="\n")
            print(apart.sync.last_words(), apart.get(f"/events?run={run}"), sep="\n")
            raise


def _is_there(apart: Apart, run: str) -> bool:
    return any(view["name"] == run for view in apart.get("/runs"))
