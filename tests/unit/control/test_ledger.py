"""The data's ledger against a model: asks, pushes, exclusions, losses, late commits, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from syncline_control.core.ledger import Done, Ledger, Life, Push, Span, counts
from syncline_proto.ranges import NOTHING, Range, Ranges, joined, split

SIZE, FRAGMENTS, SETTLE_S = 12, 3, 10.0
NAMES = st.sampled_from(["a", "b", "c"])
WHO = st.integers(0, 5)

Position = tuple[int, int]
T = TypeVar("T")


def positions(*sets: Ranges) -> set[Position]:
    return {(epoch, at) for ranges in sets for epoch, a, b in ranges for at in range(a, b)}


@dataclass
class Reader:
    """What a replica knows of itself."""

    life: Life
    heard: int = 0
    holds: Ranges = NOTHING
    under_way: list[tuple[Ranges, list[tuple[int, bool]]]] = field(default_factory=list)
    """Pushes: data; fragments that are yet to commit it, each with whether it counts there."""


def picked(ones: Sequence[T], who: int) -> T:
    return ones[who % len(ones)]


class Data(RuleBasedStateMachine):
    """Replicas that come and go; a round is never open for longer than SETTLE_S."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(SIZE, FRAGMENTS)
        self.readers: dict[str, Reader] = {}
        self.gone: list[Reader] = []
        self.lives = 0
        self.committed: dict[int, Done] = {f: Done() for f in range(FRAGMENTS)}
        self.times_trained: dict[Position, int] = {}

    def alive(self) -> dict[str, int]:
        return {name: reader.life.incarnation for name, reader in self.readers.items()}

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        self.lives += 1
        if name in self.readers:
            self.gone.append(self.readers[name])
        self.readers[name] = Reader(Life(name, self.lives))

    @precondition(lambda self: self.readers)
    @rule(who=WHO, want=st.integers(1, 9), is_heard=st.booleans())
    def ask(self, who: int, want: int, is_heard: bool) -> None:
        reader = picked(list(self.readers.values()), who)
        self.ledger.see_lives(self.alive(), self.now, SETTLE_S)
        number, ranges = self.ledger.granted(reader.life, reader.heard)
        if not ranges:
            epoch, start = self.ledger.next
            coming = [divmod(epoch * SIZE + start + ahead, SIZE) for ahead in range(want)]
            number += 1
            least_trained = sorted(self.free())[:want]
            ranges = self.ledger.grant(reader.life, number, want)
            assert sorted(positions(ranges)) == [*least_trained, *coming][:want]
        assert not positions(ranges) & positions(reader.holds)
        if is_heard:
            reader.heard, reader.holds = number, joined(reader.holds, ranges)

    def free(self) -> set[Position]:
        return positions(*[(span.range,) for span in self.ledger.spans if span.is_free])

    @precondition(lambda self: any(reader.holds for reader in self.readers.values()))
    @rule(who=WHO, size=st.integers(1, 9), verdicts=st.tuples(*[st.booleans()] * FRAGMENTS))
    def push(self, who: int, size: int, verdicts: tuple[bool, ...]) -> None:
        reader = picked([reader for reader in self.readers.values() if reader.holds], who)
        data, reader.holds = split(reader.holds, size)
        reader.under_way.append((data, list(enumerate(verdicts))))

    @precondition(lambda self: self.pushing())
    @rule(who=WHO, order=st.permutations(range(FRAGMENTS)), times=st.integers(1, FRAGMENTS))
    def commit(self, who: int, order: list[int], times: int) -> None:
        """Some fragments commit somebody's oldest push."""
        reader = picked(self.pushing(), who)
        data, waiting = reader.under_way[0]
        waiting.sort(key=lambda one: order.index(one[0]))
        for fragment, counted in waiting[:times]:
            self._commit(fragment, data, counted)
        del waiting[:times]
        if not waiting:
            reader.under_way.pop(0)

    def pushing(self) -> list[Reader]:
        return [reader for reader in (*self.readers.values(), *self.gone) if reader.under_way]

    def _commit(self, fragment: int, data: Ranges, counted: bool) -> None:
        done = self.committed[fragment]
        kept = (joined(done.trained, data), done.excluded)
        if not counted:
            kept = (done.trained, joined(done.excluded, data))
        self.committed[fragment] = Done(*kept)
        before = positions(*[d.trained for d in self.ledger.done.values()])
        for _ in range(2):  # what is told twice counts once
            self.ledger.cover([Push(1 << fragment, data, counted)], self.now + SETTLE_S)
        after = positions(*[d.trained for d in self.ledger.done.values()])
        assert before <= after

    @precondition(lambda self: self.readers)
    @rule(who=WHO, is_sure=st.booleans())
    def lose(self, who: int, is_sure: bool) -> None:
        if is_sure:  # or all would be lost before much is done
            self.gone.append(self.readers.pop(picked(sorted(self.readers), who)))
            self.ledger.see_lives(self.alive(), self.now, SETTLE_S)

    @precondition(lambda self: any(reader.holds for reader in self.readers.values()))
    @rule(who=WHO, size=st.integers(1, 3))
    def give_back(self, who: int, size: int) -> None:
        reader = picked([reader for reader in self.readers.values() if reader.holds], who)
        back, reader.holds = split(reader.holds, size)
        assert self.ledger.take_back(reader.life, back) == len(positions(back))
        assert positions(back) <= self.free()

    @rule()
    def time_passes(self) -> None:
        """Rounds end before what a lost one has pushed is free again."""
        self.now += SETTLE_S + 1.0
        for reader in self.gone:
            for data, waiting in reader.under_way:
                for fragment, counted in waiting:
                    self._commit(fragment, data, counted)
        self.gone = []
        self.ledger.see_lives(self.alive(), self.now, SETTLE_S)

    @rule()
    def the_control_plane_restarts(self) -> None:
        """It reads its tables again, and every service tells where its fragments stand."""
        held = self.ledger
        self.ledger = Ledger(SIZE, FRAGMENTS, held.next, held.spans, held.done)
        before = (list(held.spans), dict(held.done))
        for fragment, done in self.committed.items():
            self.ledger.stands(1 << fragment, done.trained, done.excluded, self.now + SETTLE_S)
        kept = {epoch: done for epoch, done in self.ledger.done.items() if done != Done()}
        assert (self.ledger.spans, kept) == before

    @precondition(lambda self: not self.readers)
    @rule()
    def the_database_is_lost(self) -> None:
        """A new ledger finds out from the stores what is done; nobody is left to hold the rest."""
        for reader in self.gone:
            for data, waiting in reader.under_way:
                for fragment, counted in waiting:
                    self._commit(fragment, data, counted)
        self.gone = []
        done = positions(*[d.trained for d in self.ledger.done.values()])
        out = positions(*[d.excluded for d in self.ledger.done.values()])
        self.ledger = Ledger(SIZE, FRAGMENTS)
        for fragment, of in self.committed.items():
            self.ledger.stands(1 << fragment, of.trained, of.excluded, self.now)
        self.ledger.see_lives({}, self.now, SETTLE_S)
        assert positions(*[d.trained for d in self.ledger.done.values()]) == done
        assert positions(*[d.excluded for d in self.ledger.done.values()]) == out
        assert all(span.is_free for span in self.ledger.spans)

    @invariant()
    def every_position_is_somewhere_once(self) -> None:
        spans = [(span.range,) for span in self.ledger.spans]
        parts = [*spans, *[d.trained for d in self.ledger.done.values()]]
        parts += [d.excluded for d in self.ledger.done.values()]
        assert sum(len(positions(part)) for part in parts) == len(positions(*parts))
        epoch, start = self.ledger.next
        below = {(e, at) for e in range(epoch + 1) for at in range(SIZE if e < epoch else start)}
        assert positions(*parts) == below

    @invariant()
    def nobody_reads_what_another_does(self) -> None:
        """Nor what is done: so nothing is trained twice in an epoch."""
        read = [reader.holds for reader in self.readers.values()]
        read += [push[0] for reader in self.readers.values() for push in reader.under_way]
        read += [push[0] for reader in self.gone for push in reader.under_way]
        assert sum(len(positions(part)) for part in read) == len(positions(*read))
        done = positions(*[d.trained for d in self.ledger.done.values()])
        assert not done & positions(*[reader.holds for reader in self.readers.values()])

    @invariant()
    def what_is_done_every_fragment_has(self) -> None:
        for position in positions(*[d.trained for d in self.ledger.done.values()]):
            of = [positions(d.trained) | positions(d.excluded) for d in self.committed.values()]
            assert all(position in one for one in of)
            assert any(position in positions(d.trained) for d in self.committed.values())
        for position in positions(*[d.excluded for d in self.ledger.done.values()]):
            assert all(position in positions(d.excluded) for d in self.committed.values())
            assert not any(position in positions(d.trained) for d in self.committed.values())

    @invariant()
    def the_counts_add_up(self) -> None:
        for epoch in counts(self.ledger, SIZE):
            assert sum(epoch[1:]) == SIZE
            assert min(epoch[1:]) >= 0


Data.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestData = Data.TestCase


def test_a_service_that_went_back_gives_its_data_back() -> None:
    ledger = Ledger(10, 2)
    life = Life("a", 1)
    first, second = (Range(0, 0, 4),), (Range(0, 4, 8),)
    assert ledger.grant(life, 1, 8) == (Range(0, 0, 8),)
    for data in (first, second):
        ledger.cover([Push(0b11, data, True)], 0.0)
    assert ledger.done == {0: Done((Range(0, 0, 8),))}
    ledger.stands(0b01, first, NOTHING, 0.0)
    assert ledger.done == {0: Done(first)}
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
    assert ledger.done == {0: Done(data)}


def test_what_nobody_can_have_read_is_passed_over() -> None:
    ledger = Ledger(10, 1)
    ledger.cover([Push(1, (Range(0, 8, 40), Range(5_000, 0, 3)), True)], 0.0)
    assert ledger.done == {0: Done((Range(0, 8, 10),))}
    assert [span.range for span in ledger.spans] == [Range(0, 0, 8)]


def test_nothing_is_done_before_the_number_of_fragments_is_known() -> None:
    ledger = Ledger(10, 0)
    data = ledger.grant(Life("a", 1), 1, 4)
    ledger.cover([Push(0b1, data, True)], 0.0)
    assert not ledger.done
    again = Ledger(10, 1, ledger.next, ledger.spans, ledger.done)
    again.cover([Push(0b1, data, True)], 0.0)
    assert again.done == {0: Done(data)}


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
    ledger.stands(0b01, NOTHING, NOTHING, 0.0)
    ledger.cover([Push(0b10, data, True)], 0.0)
    assert not ledger.done
