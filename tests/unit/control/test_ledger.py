"""The data's ledger against a model: asks, pushes, exclusions, losses, long rounds, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from syncline_control.core.coverage import counts
from syncline_control.core.ledger import Done, Ledger, Push
from syncline_control.core.spans import Life, Span
from syncline_proto.ranges import NOTHING, Range, Ranges, count, joined, split
from syncline_proto.stretches import Stretches, added

FRAGMENTS, SETTLE_S = 3, 10.0
NAMES = st.sampled_from(["a", "b", "c"])
WHO = st.integers(0, 5)

Position = tuple[int, int]
T = TypeVar("T")


def positions(*sets: Ranges) -> set[Position]:
    return {(epoch, at) for ranges in sets for epoch, a, b in ranges for at in range(a, b)}


def stretches(ranges: Ranges) -> Stretches:
    """As a fragment tells them."""
    return added((), ranges)


@dataclass
class Reader:
    """What a replica knows of itself."""

    life: Life
    heard: int = 0
    holds: Ranges = NOTHING
    pushed: list[Ranges] = field(default_factory=list[Ranges])


@dataclass(frozen=True)
class Sent:
    """A push of it on its way to one fragment, in that one's open round, or committed there."""

    life: Life
    data: Ranges
    counts: bool


@dataclass
class Service:
    """Of one fragment. Its round may be open for any time, and what it tells comes in order."""

    members: dict[str, int] = field(default_factory=dict[str, int])
    version: int = 0
    said: int = 0
    coming: list[Sent] = field(default_factory=list[Sent])
    open: list[Sent] = field(default_factory=list[Sent])
    committed: list[Sent] = field(default_factory=list[Sent])
    telling: list[Sent | int] = field(default_factory=list[Sent | int])
    """Rounds, and words: that it has settled as of a version."""

    def says(self) -> None:
        """It has settled, if it has."""
        gone = [one for one in self.open if self.members.get(one.life.replica) != one.life[1]]
        if not gone and self.said < self.version:
            self.said = self.version
            self.telling.append(self.version)

    def may_commit(self) -> list[Sent]:
        """All that may yet be told of."""
        alive = [one for one in self.coming if self.members.get(one.life.replica) == one.life[1]]
        told = [one for one in self.telling if isinstance(one, Sent)]
        return [*alive, *self.open, *told]

    def done(self) -> Done:
        parts = ([one.data for one in self.committed if one.counts is how] for how in (True, False))
        return Done(*(joined(*some) for some in parts))


def picked(ones: Sequence[T], who: int) -> T:
    return ones[who % len(ones)]


class Data(RuleBasedStateMachine):
    """Replicas that come and go; rounds that are open for as long as they like.

    An epoch has ``size`` sequences.
    """

    size = 12

    def __init__(self) -> None:
        super().__init__()
        self.now, self.version = 0.0, 1
        self.ledger = Ledger(self.size, FRAGMENTS)
        self.readers: dict[str, Reader] = {}
        self.lives = 0
        self.services = [Service() for _ in range(FRAGMENTS)]
        self.settled = [0] * FRAGMENTS

    def alive(self) -> dict[str, int]:
        return {name: reader.life.incarnation for name, reader in self.readers.items()}

    def see_lives(self) -> None:
        self.ledger.see_lives(
            self.alive(), self.now, SETTLE_S, version=self.version, settled=min(self.settled)
        )

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        self.lives, self.version = self.lives + 1, self.version + 1
        self.readers[name] = Reader(Life(name, self.lives))
        self.see_lives()

    @precondition(lambda self: self.readers)
    @rule(who=WHO, is_sure=st.booleans())
    def lose(self, who: int, is_sure: bool) -> None:
        if is_sure:  # or all would be lost before much is done
            del self.readers[picked(sorted(self.readers), who)]
            self.version += 1
            self.see_lives()

    @precondition(lambda self: self.readers)
    @rule(who=WHO, want=st.integers(1, 9), is_heard=st.booleans())
    def ask(self, who: int, want: int, is_heard: bool) -> None:
        """Whoever asks is given something, whatever settles."""
        reader = picked(list(self.readers.values()), who)
        self.see_lives()
        number, ranges = self.ledger.granted(reader.life, reader.heard)
        if not ranges:
            coming = [divmod(self.ledger.next + ahead, self.size) for ahead in range(want)]
            number += 1
            least_trained = sorted(self.free())[:want]
            ranges = self.ledger.grant(reader.life, number, want)
            assert sorted(positions(ranges)) == [*least_trained, *coming][:want]
        assert not positions(ranges) & positions(reader.holds)
        if is_heard:
            reader.heard, reader.holds = number, joined(reader.holds, ranges)

    def along(self, *sets: Ranges) -> set[Position]:
        """Those of ranges on the track."""
        return {divmod(at, self.size) for one in sets for _, a, b in one for at in range(a, b)}

    def free(self) -> set[Position]:
        return self.along(*[(span.range,) for span in self.ledger.spans if span.is_free])

    @precondition(lambda self: any(reader.holds for reader in self.readers.values()))
    @rule(who=WHO, size=st.integers(1, 9), verdicts=st.tuples(*[st.booleans()] * FRAGMENTS))
    def push(self, who: int, size: int, verdicts: tuple[bool, ...]) -> None:
        reader = picked([reader for reader in self.readers.values() if reader.holds], who)
        data, reader.holds = split(reader.holds, size)
        reader.pushed.append(data)
        for service, counts_there in zip(self.services, verdicts, strict=True):
            service.coming.append(Sent(reader.life, data, counts_there))

    @rule(who=WHO, arrives=st.booleans())
    def adopt(self, who: int, arrives: bool) -> None:
        """A service hears of the membership, after a push or before it; gone lives are fenced."""
        service = picked(self.services, who)
        if arrives:
            self._arrive(service)
        service.members, service.version = self.alive(), self.version
        service.says()

    @rule(who=WHO)
    def arrive(self, who: int) -> None:
        self._arrive(picked(self.services, who))

    def _arrive(self, service: Service) -> None:
        """What is on its way is judged: a life that is no member is fenced, or is yet to be."""
        members, coming = service.members, service.coming
        service.open += [one for one in coming if members.get(one.life.replica) == one.life[1]]
        service.coming = [one for one in coming if one.life in self.living() - set(members.items())]

    def living(self) -> set[tuple[str, int]]:
        return set(self.alive().items())

    @rule(who=WHO, is_told=st.booleans())
    def commit(self, who: int, is_told: bool) -> None:
        service = picked(self.services, who)
        service.committed += service.open
        service.telling += service.open
        service.open = []
        service.says()
        if is_told:
            self.hear(who)

    @rule(who=WHO)
    def hear(self, who: int) -> None:
        """Whatever a service has told arrives; what is told twice counts once."""
        fragment = who % FRAGMENTS
        telling, self.services[fragment].telling = self.services[fragment].telling, []
        before = self.along(self.ledger.done.trained)
        for one in telling:
            if isinstance(one, int):
                self.settled[fragment] = one
                continue
            push = Push(1 << fragment, one.data, one.counts, one.life)
            for _ in range(2):
                self.ledger.cover([push], self.now + SETTLE_S)
        after = self.along(self.ledger.done.trained)
        assert before <= after
        self.see_lives()

    @precondition(lambda self: any(reader.holds for reader in self.readers.values()))
    @rule(who=WHO, size=st.integers(1, 3))
    def give_back(self, who: int, size: int) -> None:
        reader = picked([reader for reader in self.readers.values() if reader.holds], who)
        back, reader.holds = split(reader.holds, size)
        assert self.ledger.take_back(reader.life, back) == len(positions(back))
        assert positions(back) <= self.free()

    @rule()
    def time_passes(self) -> None:
        """It frees nothing that services can speak of."""
        settling = self.along(*[(span.range,) for span in self.ledger.spans if span.gone])
        self.now += SETTLE_S + 1.0
        self.see_lives()
        assert not settling & self.free()

    @rule()
    def all_is_told(self) -> None:
        """Every service hears, commits and tells: then nothing of the gone settles any more."""
        for fragment in range(FRAGMENTS):
            self.adopt(fragment, False)
            self.commit(fragment, True)
        held = [span for span in self.ledger.spans if span.life and not span.is_free]
        assert all(span.life in self.living() for span in held)

    @rule()
    def the_control_plane_restarts(self) -> None:
        """It reads its tables again, and every service tells where its fragment stands."""
        for fragment in range(FRAGMENTS):
            self.hear(fragment)
        held = self.ledger
        self.ledger = Ledger(self.size, FRAGMENTS, held.next, held.spans, held.done)
        self._stand(self.now + SETTLE_S)
        assert (self.ledger.spans, self.ledger.done) == (held.spans, held.done)

    def _stand(self, until: float) -> None:
        for fragment, service in enumerate(self.services):
            done = service.done()
            trained, excluded = stretches(done.trained), stretches(done.excluded)
            self.ledger.stands(1 << fragment, trained, excluded, until)

    @precondition(lambda self: not self.readers)
    @rule()
    def the_database_is_lost(self) -> None:
        """A new ledger finds out from the stores what is done; nobody is left to hold the rest."""
        self.all_is_told()
        done = self.along(self.ledger.done.trained)
        out = self.along(self.ledger.done.excluded)
        self.ledger = Ledger(self.size, FRAGMENTS)
        self._stand(self.now)
        self.see_lives()
        assert self.along(self.ledger.done.trained) >= done
        assert self.along(self.ledger.done.excluded) >= out
        assert all(span.is_free for span in self.ledger.spans)

    @invariant()
    def every_position_is_somewhere_once(self) -> None:
        spans = [(span.range,) for span in self.ledger.spans]
        parts = [*spans, self.ledger.done.trained, self.ledger.done.excluded]
        assert sum(len(self.along(part)) for part in parts) == len(self.along(*parts))
        assert self.along(*parts) == {divmod(at, self.size) for at in range(self.ledger.next)}

    @invariant()
    def nobody_reads_what_another_does(self) -> None:
        """Nor what a push of somebody may yet commit that is gone, nor what is done."""
        for name, reader in self.readers.items():
            mine = positions(reader.holds, *reader.pushed)
            others = [r for other, r in self.readers.items() if other != name]
            assert not mine & positions(*[part for r in others for part in (r.holds, *r.pushed)])
            yet = [one for service in self.services for one in service.may_commit()]
            assert not mine & positions(*[one.data for one in yet if one.life != reader.life])
            done = self.along(self.ledger.done.trained)
            assert not done & positions(reader.holds)

    @invariant()
    def what_is_done_every_fragment_has(self) -> None:
        told = [service.done() for service in self.services]
        done = self.ledger.done
        for one in told:
            assert self.along(done.trained) <= positions(one.trained, one.excluded)
            assert self.along(done.excluded) <= positions(one.excluded)
        assert self.along(done.trained) <= positions(*[one.trained for one in told])

    @invariant()
    def the_counts_add_up(self) -> None:
        shown = counts(self.ledger, 100)
        for epoch in shown:
            assert sum(epoch[1:]) == self.size and min(epoch[1:]) >= 0
        assert sum(epoch.trained for epoch in shown) == count(self.ledger.done.trained)


class Single(Data):
    """Of one sequence: each that is read ends its epoch."""

    size = 1


LONG = settings(max_examples=150, stateful_step_count=40, deadline=None)
Data.TestCase.settings = Single.TestCase.settings = LONG
TestData, TestSingle = Data.TestCase, Single.TestCase


def test_a_service_that_went_back_gives_its_data_back() -> None:
    ledger = Ledger(10, 2)
    life = Life("a", 1)
    first, second = (Range(0, 0, 4),), (Range(0, 4, 8),)
    assert ledger.grant(life, 1, 8) == (Range(0, 0, 8),)
    for data in (first, second):
        ledger.cover([Push(0b11, data, True)], 0.0)
    assert ledger.done == Done((Range(0, 0, 8),))
    ledger.stands(0b01, stretches(first), (), 0.0)
    assert ledger.done == Done(first)
    assert ledger.see_lives({"a": 1}, 0.0, 5.0) == 4, "once it has settled"
    assert ledger.grant(life, 2, 4) == second


def test_a_late_commit_holds_back_what_was_free_again() -> None:
    ledger = Ledger(10, 2)
    lost, data = Life("a", 1), (Range(0, 0, 4),)
    assert ledger.grant(lost, 1, 4) == data
    ledger.see_lives({}, 0.0, 5.0)
    assert ledger.see_lives({}, 5.0, 5.0) == 4
    ledger.cover([Push(0b01, data, True)], 11.0)
    assert ledger.grant(Life("b", 1), 1, 2) == (Range(0, 4, 6),)
    ledger.cover([Push(0b10, data, True)], 12.0)
    assert ledger.done == Done(data)


def test_what_a_lost_push_left_in_some_fragments_is_not_asked_of_them_again() -> None:
    ledger = Ledger(10, 2)
    lost, other = Life("a", 1), Life("b", 1)
    data = ledger.grant(lost, 1, 4)
    ledger.cover([Push(0b01, data, True, lost)], 0.0)
    ledger.see_lives({"b": 1}, 0.0, 5.0, version=2, settled=1)
    assert ledger.see_lives({"b": 1}, 99.0, 5.0, version=2, settled=1) == 0
    assert ledger.see_lives({"b": 1}, 0.0, 5.0, version=2, settled=2) == 4
    ledger.stands(0b01, stretches(data), (), 9.0)
    assert ledger.grant(other, 1, 4) == data, "told once more it does not settle once more"
    ledger.cover([Push(0b10, data, True, other)], 0.0)
    assert ledger.done == Done(data)


def test_what_others_are_yet_to_commit_is_whose_push_it_was() -> None:
    """As where the database is new to the run: nothing was leased there."""
    ledger = Ledger(10, 2)
    life, data = Life("a", 1), (Range(0, 0, 4),)
    ledger.cover([Push(0b01, data, True, life)], 5.0)
    assert ledger.see_lives({"a": 1}, 99.0, 5.0, version=7, settled=7) == 0
    ledger.see_lives({}, 99.0, 5.0, version=8, settled=7)
    assert ledger.awaits == 8
    assert ledger.see_lives({}, 99.0, 5.0, version=8, settled=8) == 4


def test_nothing_is_done_before_the_number_of_fragments_is_known() -> None:
    ledger = Ledger(10, 0)
    data = ledger.grant(Life("a", 1), 1, 4)
    ledger.cover([Push(0b1, data, True)], 0.0)
    assert ledger.done == Done()
    again = Ledger(10, 1, ledger.next, ledger.spans, ledger.done)
    again.cover([Push(0b1, data, True)], 0.0)
    assert again.done == Done(data)


def test_an_unheard_answer_is_given_once_more() -> None:
    ledger = Ledger(10, 1)
    life = Life("a", 1)
    given = ledger.grant(life, 1, 4)
    assert ledger.granted(life, 0) == (1, given)
    assert ledger.granted(life, 1) == (1, NOTHING)
    assert ledger.granted(Life("a", 2), 0) == (0, NOTHING)
    assert ledger.spans[0] == Span(Range(0, 0, 4), life, 1)


def test_only_its_holder_gives_something_back() -> None:
    ledger = Ledger(10, 1)
    given = ledger.grant(Life("a", 2), 1, 4)
    assert ledger.take_back(Life("a", 1), given) == ledger.take_back(Life("b", 1), given) == 0
    assert ledger.spans[0] == Span(Range(0, 0, 4), Life("a", 2), 1)


def test_what_one_fragment_lost_is_not_done_by_the_others_alone() -> None:
    ledger = Ledger(10, 2)
    data = ledger.grant(Life("a", 1), 1, 4)
    ledger.cover([Push(0b01, data, True)], 0.0)
    ledger.stands(0b01, (), (), 0.0)
    ledger.cover([Push(0b10, data, True)], 0.0)
    assert ledger.done == Done()
