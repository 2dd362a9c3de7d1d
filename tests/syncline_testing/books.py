"""The leased data of a swarm's run: the control plane's ledger, and how the service tells it.

A report is a number on paper: what it says is looked up, so that the real record of what is untold
keeps texts, as in the product. Reports go in batches, one at a time, until they are answered; what
is told twice counts once, and where a fragment stood before what was told since says nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from syncline_control.core.ledger import Done, Ledger, Push
from syncline_control.core.spans import Life
from syncline_proto.ranges import Ranges, count, joined
from syncline_sync.core.record import Saved
from syncline_sync.core.untold import Untold
from syncline_testing.simulated import FRAGMENTS
from syncline_testing.spread import spread

SEQUENCES = 96
"""Of an epoch; so few that many of them are walked."""
FLUSH_S = 0.2

Position = tuple[int, int]
"""An epoch, and where in its order."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a round has committed, or (``stands``) all that its fragment has: the newer the larger
    its number."""

    number: int
    fragment: int
    saved: Saved
    stands: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is open in a fragment of lives that are gone as of this version."""

    fragment: int
    version: int


class Books:
    """The control plane's; they outlast it."""

    def __init__(self) -> None:
        self.ledger = Ledger(SEQUENCES, FRAGMENTS)
        self._known: set[int] = set()
        self._stood: dict[int, int] = {}
        self._settled: dict[int, int] = {}

    @property
    def settled(self) -> int | None:
        """As of which version all fragments have settled; None until all have been heard of."""
        return min(self._settled.values()) if len(self._settled) == FRAGMENTS else None

    def hear(self, batch: Sequence[Report | Settled], until: float) -> None:
        for one in batch:
            if isinstance(one, Settled):
                if one.fragment in self._settled:
                    said = max(self._settled[one.fragment], one.version)
                    self._settled[one.fragment] = said
            elif one.number not in self._known:
                self._known.add(one.number)
                self._hear_round(one, until)

    def _hear_round(self, report: Report, until: float) -> None:
        saved, bit = report.saved, 1 << report.fragment
        self._settled.setdefault(report.fragment, 0)
        is_newest = report.number > self._stood.get(report.fragment, -1)
        if is_newest:
            self._stood[report.fragment] = report.number
        if not report.stands:
            pushes = pushes_of(saved)
            lives = (Push(bit, data, folded, life) for life, data, folded in pushes if data)
            self.ledger.cover(lives, until)
        elif is_newest:
            self.ledger.stands(bit, saved.trained, saved.excluded, until)

    def check(self, alive: Mapping[str, int]) -> None:
        """Each position is somewhere once; nobody holds what is done."""
        spans = [span.range for span in self.ledger.spans]
        done = _of(self.ledger.done)
        everywhere = joined(spans, *done)
        assert count(everywhere) == self.ledger.next, "a sequence is nowhere"
        assert count(everywhere) == count(spans) + sum(map(count, done)), "or twice"
        for span in self.ledger.spans:
            if span.life and span.until is None:
                assert alive.get(span.life.replica) == span.life.incarnation, "it is gone"

    def done(self) -> Ranges:
        return tuple(self.ledger.track.epochs(joined(*_of(self.ledger.done))))


def pushes_of(saved: Saved) -> list[tuple[Life, Ranges, bool]]:
    """What a round committed: whose, which sequences, and whether it counted."""
    return [(Life(c.replica, c.incarnation), c.data, c.folded > 0.0) for c in saved.contributions]


def _of(done: Done) -> tuple[Ranges, Ranges]:
    return done.trained, done.excluded


class Count:
    """The test's own: who was given what, and where it is committed."""

    def __init__(self) -> None:
        self._given: dict[Position, Life] = {}
        """Who was given it last, and has not given it back."""
        self._within: list[dict[Position, set[Life]]] = [{} for _ in range(FRAGMENTS)]
        """By fragment: whose pushes of it are committed."""

    def grant(self, life: Life, ranges: Ranges, alive: Mapping[str, int]) -> None:
        """Nobody is given what another has who is there, or what is in every fragment."""
        for at in _positions(ranges):
            other = self._given.get(at, life)
            if other != life:
                assert alive.get(other.replica) != other.incarnation, f"{other} has it"
            if at not in self._given or other != life:
                assert not self._whole(at), "it is done"
            self._given[at] = life

    def give_back(self, life: Life, ranges: Ranges) -> None:
        for at in _positions(ranges):
            if self._given.get(at) == life:
                del self._given[at]

    def enter(self, life: Life, data: Ranges, alive: Mapping[str, int]) -> None:
        """A push is in a round: nobody else who is there was given any of it."""
        for at in _positions(data):
            other = self._given.get(at, life)
            gone = other == life or alive.get(other.replica) != other.incarnation
            assert gone, f"{other} reads it, too"

    def commit(self, fragment: int, saved: Saved) -> None:
        """Each sequence is in all fragments once, and the record is the sum of all pushes."""
        within = self._within[fragment]
        for life, data, _ in pushes_of(saved):
            for at in _positions(data):
                within.setdefault(at, set()).add(life)
                assert len(self._whole(at)) <= 1, "trained twice"
        counted = count(joined(spread(saved.trained), spread(saved.excluded)))
        assert counted == len(within), "the record is another"

    def lose(self, fragment: int) -> None:
        """The synchronous phase begins anew: what was in it counts for nothing."""
        self._within[fragment].clear()

    def _whole(self, at: Position) -> set[Life]:
        """Whose pushes of it are in every fragment."""
        first, *others = (within.get(at, set()) for within in self._within)
        return first.intersection(*others)


def _positions(ranges: Ranges) -> Iterator[Position]:
    return ((epoch, at) for epoch, start, stop in ranges for at in range(start, stop))


class Teller:
    """What one process of the service tells, in order; a batch goes again until it is answered."""

    def __init__(
        self,
        send: Callable[[Sequence[Report | Settled], Callable[[], None]], None],
        after: Callable[[float, Callable[[], None]], None],
        again_s: float,
    ) -> None:
        """``send`` a batch, with what is to happen where it is answered."""
        self._send, self._after, self._again_s = send, after, again_s
        self._waiting: deque[Report | Settled] = deque()
        self._put, self._batch, self._is_over = 0, 0, False
        self._is_out = False
        self.settled = 0
        self.untold = [Untold() for _ in range(FRAGMENTS)]

    def end(self) -> None:
        self._is_over = True

    def put(self, what: Report | Settled) -> int:
        self._waiting.append(what)
        self._put += 1
        if not self._is_out:
            self._is_out = True
            self._after(FLUSH_S, self._next)
        return self._put - 1

    def tell(self, report: Report) -> None:
        """A round's report, which stays untold until it is answered."""
        self.untold[report.fragment].told(self.put(report), str(report.number))

    def kept(self, report: Report) -> tuple[str, ...]:
        """What goes with the commit of that round."""
        return self.untold[report.fragment].kept(self.settled, str(report.number))

    def _next(self) -> None:
        batch, upto = tuple(self._waiting), self._put
        self._waiting.clear()
        self._is_out = bool(batch)
        self._batch += 1
        number = self._batch

        def answered() -> None:
            if not self._is_over and self._batch == number:
                self.settled = upto
                self._next()

        def again() -> None:
            if not self._is_over and self._batch == number and batch:
                self._send(batch, answered)
                self._after(self._again_s, again)

        again()
