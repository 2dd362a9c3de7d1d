"""A swarm that reads leased data: one sequence with each inner step.

The control plane's ledger and the service's records, each with what may befall it, must agree with
the test's own count: each sequence is in all fragments once, or is given back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from syncline.core.supply import Supply
from syncline_control.core.spans import Life
from syncline_proto.ranges import NOTHING, Ranges, common, count, joined, split
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Closing, Judgement, Kind, Saved, WholePush
from syncline_testing.books import SEQUENCES, Books, Count, Report, Settled, Teller
from syncline_testing.lives import Living
from syncline_testing.ruled import BEAT_S, CONTROL, LEASE_S, SERVICE
from syncline_testing.simulated import FRAGMENTS, SYNC_EVERY
from syncline_testing.spread import spread
from syncline_testing.swarm import AGAIN_S, DEADLINE_S, STEP_S, Swarm

CALL_S = 7.0
"""So long an answer of the control plane is waited for."""


class Reader(Living):
    """A life with a stock of leased sequences; where that is empty it reads what nobody counts."""

    def __init__(self, name: str, life: int, step_s: float, swarm: LeasedSwarm) -> None:
        self._plane = swarm
        super().__init__(name, life, step_s, swarm)

    def enter(self) -> None:
        self.stock: Ranges = NOTHING
        self.read = [NOTHING for _ in range(FRAGMENTS)]
        """By fragment: what it was trained on, and no push names."""
        self.after = self._calls = 0
        """The last grant that was heard; calls that were made."""
        self._is_asking = False
        self._supply = Supply.of(SEQUENCES, 2, 1, SYNC_EVERY)
        super().enter()
        self._keep_up()

    def _keep_up(self) -> None:
        lacking = self._supply.lacking(count(self.stock), 1.0 / self.step_s)
        if self.alive and lacking and not self._is_asking:
            self._is_asking, self._calls = True, self._calls + 1
            number = self._calls
            self._plane.ask_for(self, number, lacking)
            self.place.after(CALL_S, lambda: self._call_ends(number))
        if self.alive:
            self.place.after(BEAT_S, self._keep_up)

    def _call_ends(self, number: int) -> None:
        if number == self._calls:
            self._is_asking = False

    def hear_grant(self, call: int, number: int, ranges: Ranges) -> None:
        if self.alive and self._is_asking and call == self._calls:
            self._is_asking, self.after = False, max(self.after, number)
            self.stock = joined(self.stock, ranges)

    def trained(self) -> None:
        if self.alive:
            one, self.stock = split(self.stock, 1)
            self.read = [joined(read, one) for read in self.read]
        super().trained()

    def take(self, fragment: int) -> None:
        outcome = self._pending[fragment].outcome
        super().take(fragment)
        if outcome is not None and outcome[2]:
            self.unread(fragment)

    def tell_again(self) -> None:
        every = joined(*self.read, *(push.data for push in self.pushes.values()))
        self.read = [every for _ in range(FRAGMENTS)]

    def unread(self, fragment: int) -> None:
        """What the last push named goes into the next."""
        self.read[fragment] = joined(self.read[fragment], self.pushes[fragment].data)

    def lose(self, fragment: int, push: WholePush) -> None:
        self.read[fragment] = joined(self.read[fragment], push.data)

    def held(self) -> Ranges:
        """All that is read, or to be read, and not known to be in a revision."""
        pushed = [one.push.data for one in self.exchanges.values() if not one.is_over]
        late = [one.push.data for one in self.late.values()]
        return joined(self.stock, *self.read, *pushed, *late)

    def _go(self) -> None:
        if self.alive:
            self._plane.give_back(self, self.stock)
        super()._go()


class LeasedSwarm(Swarm):
    """Its service tells of data, and its control plane leases it."""

    def __init__(self, settings: RunSettings) -> None:
        self.books, self.count = Books(), Count()
        self._numbers = itertools.count()
        self._reports: dict[str, Report] = {}
        """By the text of its number."""
        self._kept: list[tuple[str, ...]] = [() for _ in range(FRAGMENTS)]
        """By fragment: what is stored of reports that may be untold."""
        self._said_settled = [0] * FRAGMENTS
        self._phases = [0] * FRAGMENTS
        self._teller = self._new_teller()
        super().__init__(settings)
        self._tell_standings()

    def _new_teller(self) -> Teller:
        def send(batch: Sequence[Report | Settled], answered: Callable[[], None]) -> None:
            def arrived() -> None:
                if self.controls:
                    self.books.hear(batch, self.now_s + DEADLINE_S + LEASE_S)
                    self._see_lives()
                    self.over((CONTROL, SERVICE), answered)

            self.over((SERVICE, CONTROL), arrived)

        return Teller(send, self.after, AGAIN_S)

    # The service.

    def _report(self, fragment: int, saved: Saved, stands: bool) -> Report:
        report = Report(next(self._numbers), fragment, saved, stands)
        self._reports[str(report.number)] = report
        return report

    def _tell_standings(self) -> None:
        for fragment, core in enumerate(self.cores):
            self._teller.put(self._report(fragment, core.saved, True))

    def start_service(self) -> None:
        if not self.serves:
            self._teller = self._new_teller()
            self._said_settled = [0] * FRAGMENTS
            self._phases = [saved.phase for saved in self._stored]
            for kept in self._kept:
                for text in kept:
                    self._teller.tell(self._reports[text])
            for fragment, saved in enumerate(self._stored):
                self._teller.put(self._report(fragment, saved, True))
        super().start_service()

    def stop_service(self) -> None:
        super().stop_service()
        self._teller.end()

    def _commit(self, fragment: int, closing: Closing) -> None:
        super()._commit(fragment, closing)
        self.count.commit(fragment, closing.saved)
        report = self._report(fragment, closing.saved, False)
        self._kept[fragment] = self._teller.kept(report)
        self._teller.tell(report)
        self._settle(fragment)

    def adopt(self) -> None:
        super().adopt()
        for fragment, core in enumerate(self.cores):
            if self.serves and core.saved.phase > self._phases[fragment]:
                self._phases[fragment] = core.saved.phase
                self.count.lose(fragment)
                self._teller.put(self._report(fragment, core.saved, True))
            self._settle(fragment)

    def _settle(self, fragment: int) -> None:
        is_asked = self._said_settled[fragment] < self._said[2]
        if self.serves and is_asked and self.cores[fragment].has_settled:
            self._said_settled[fragment] = self._told
            self._teller.put(Settled(fragment, self._told))

    def _whole(self, replica: Living, fragment: int, push: WholePush) -> WholePush:
        assert isinstance(replica, Reader)
        if push.kind is Kind.PARAMETERS:
            return push
        data, replica.read[fragment] = replica.read[fragment], NOTHING
        return replace(push, data=data)

    def _entered(self, push: WholePush, judged: Judgement) -> None:
        if judged.verdict in (pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS):
            self.count.enter(Life(push.replica, push.incarnation), push.data, self._members())

    # The control plane.

    def _live(self, name: str, life: int) -> Living:
        return Reader(name, life, self.steps_s.get(name, STEP_S), self)

    def _asks(self) -> int:
        return self.books.ledger.awaits

    def _see_lives(self) -> None:
        before, alive = self.books.ledger.awaits, self._members()
        self.books.ledger.see_lives(
            alive,
            self.now_s,
            DEADLINE_S + LEASE_S,
            rounds_close=self.running and len(alive) >= self.settings.min_replicas,
            version=self._version,
            settled=self.books.settled,
        )
        if self.books.ledger.awaits > before:
            self._version += 1
            self.tell()

    def ask_for(self, reader: Reader, call: int, want: int) -> None:
        life, after = Life(reader.name, reader.life), reader.after

        def asked() -> None:
            if not (self.controls and self._renew(reader)) or self.books.settled is None:
                return
            self._see_lives()
            number, ranges = self.books.ledger.granted(life, after)
            if not ranges:
                number, ranges = after + 1, self.books.ledger.grant(life, after + 1, want)
            self.count.grant(life, ranges, self._members())
            back = (CONTROL, reader.name)
            self.over(back, lambda: reader.hear_grant(call, number, ranges))

        self.over((reader.name, CONTROL), asked)

    def give_back(self, reader: Reader, ranges: Ranges) -> None:
        life = Life(reader.name, reader.life)

        def given_back() -> None:
            if self.controls and self._renew(reader):
                self.books.ledger.take_back(life, ranges)
                self.count.give_back(life, ranges)

        self.over((reader.name, CONTROL), given_back)

    # What must hold.

    def check(self) -> None:
        super().check()
        self.books.check(self._members())

    def in_all(self) -> Ranges:
        """What every fragment has committed."""
        saved = [core.saved for core in self.cores]
        stands = [joined(spread(one.trained), spread(one.excluded)) for one in saved]
        whole = stands[0]
        for one in stands[1:]:
            whole = common(whole, one)
        return whole

    def runs_well(self, seconds: float) -> None:
        """Then the ledger has all that was in every fragment, and nobody holds anything in vain."""
        then = self.in_all()
        super().runs_well(seconds)
        done = self.books.done()
        assert common(then, done) == then, "the ledger lacks what was committed"
        assert common(done, self.in_all()) == done, "it has what was not"
        alive = self._members()
        for span in self.books.ledger.spans:
            assert span.is_free or (
                span.life and alive.get(span.life.replica) == span.life.incarnation
            ), f"{span} has not come back"
        for reader in self.replicas.values():
            if reader.alive:
                assert isinstance(reader, Reader)
                self._check_held(reader)

    def _check_held(self, reader: Reader) -> None:
        """What the ledger says that a life holds is in its hands, or on its way to it."""
        life, ledger = Life(reader.name, reader.life), self.books.ledger
        mine = joined(s.range for s in ledger.spans if s.life == life)
        mine = tuple(ledger.track.epochs(mine))
        assert common(reader.stock, mine) == reader.stock
        _, unheard = ledger.granted(life, reader.after)
        somewhere = joined(reader.held(), unheard, self.in_all())
        assert common(mine, somewhere) == mine, "it is held by who does not know of it"
