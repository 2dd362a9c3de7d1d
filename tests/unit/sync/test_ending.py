"""The end of the synchronous phase over several services, under kills, delays and repetition.

Services, control plane and replicas are their real cores; the network is two bags of what was said,
from which anything may arrive at any time, again and again, or never. What a service had stored is
all that is left of it when it is killed; of a control plane that loses its database nothing is.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from syncline_control.core import phases
from syncline_control.core.phases import Phase
from syncline_proto.errors import InvalidRequest
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.ending import Ending, Vote
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import ClosedBy, Kind, Saved
from syncline_testing.pure import whole_push

STEPS = 2
RULES = RunSettings.model_validate({"warmup_steps": STEPS, "min_replicas": 1})
OWNED = ((0, 2), (1,), ())
"""By service; the last one owns nothing, as where there are more of them than fragments."""

Word = tuple[int, bool]


class Service:
    """One sync service: its fragments, and what its disk has of them."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.disk: dict[int, tuple[Saved, Saved | None]] = {}
        for number in OWNED[index]:
            self.disk[number] = (Saved(), None)
        self.start()

    def start(self) -> None:
        """Begin from the disk, as after a kill."""
        phase = max((saved.phase for saved, _ in self.disk.values()), default=0)
        self.ending = Ending(OWNED[self.index], is_alone=False, phase=phase)
        self.cores = {
            number: Fragment(RULES, saved, number=number, ending=self.ending, offer=offer)
            for number, (saved, offer) in self.disk.items()
        }

    def adopt(self, members: dict[str, int], word: Word) -> None:
        self.ending.hear(*word)
        for _ in range(2):  # what one of them finds, the others hear
            for number in self.cores:
                self.cores[number].adopt(0.0, members, RULES, True)
                self.close(number)

    def push(self, replica: str, incarnation: int, number: int, seq: int) -> None:
        """The next push that the fragment would take of a replica in the phase."""
        core = self.cores[number]
        saved = core.saved
        if saved.revision or replica in core.arrived:
            return
        last = saved.gradient_step == STEPS
        kind = Kind.PARAMETERS if last else Kind.GRADIENT
        given = {"base": 0} if last else {"base": None, "gradient_step": saved.gradient_step + 1}
        push = whole_push(replica, incarnation=incarnation, seq=seq, kind=kind, **given)
        judgement = core.judge(0.0, push)
        if judgement.sets and core.offer is not None:
            self.disk[number] = (self.disk[number][0], core.offer)
            core.keep_offer()
        self.close(number)

    def close(self, number: int) -> None:
        core = self.cores[number]
        closed_by: ClosedBy | None = core.due(0.0)
        if closed_by is not None:
            saved = core.close(closed_by).saved
            self.disk[number] = (saved, None)


class World:
    """Everything that may happen to a run of three services and two replicas."""

    def __init__(self, steps: int) -> None:
        self.services = [Service(index) for index in range(len(OWNED))]
        self.phase = Phase()
        self.ended: int | None = None
        """Which phase has ended, whoever remembers."""
        self.members = {"a": 1, "b": 1}
        self.incarnations = {"a": 1, "b": 1}
        self.seqs: dict[str, int] = {"a": 0, "b": 0}
        self.votes: list[tuple[int, Vote]] = []
        self.words: list[tuple[dict[str, int], Word]] = []
        self.say()
        for service in self.services:
            service.adopt(*self.words[-1])
        for number in [number for _ in range(steps) for number in range(3)]:
            for replica in "ab":
                self.a_replica_pushes(replica, number)

    def say(self) -> None:
        self.words.append((dict(self.members), (self.phase.number, self.phase.has_ended)))

    def decide(self, index: int, vote: Vote) -> None:
        shards = len(self.services)
        before = self.phase
        self.phase = phases.after(before, index, shards, vote.phase, vote.offered)
        if self.phase != before:
            self.say()
        if self.phase.has_ended:
            assert self.ended in (None, self.phase.number), "another one has ended before"
            self.ended = self.phase.number

    def the_control_plane_loses_its_database(self) -> None:
        """Whoever was asking it hears nothing more, and must join anew."""
        self.phase, self.votes, self.words = Phase(), [], []
        self.members.clear()
        self.say()

    def a_service_hears_the_word(self, service: int) -> None:
        self.services[service].adopt(*self.words[-1])

    def a_service_is_killed_and_goes_on_with_an_old_word(self, service: int, at: int) -> None:
        self.services[service].start()
        self.services[service].adopt(*self.words[at % len(self.words)])

    def a_replica_pushes_some(self, replica: str, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.a_replica_pushes(replica, number)

    def a_replica_pushes(self, replica: str, number: int) -> None:
        """As one that follows the phase would: nobody is a step ahead of a fragment."""
        if replica not in self.members or not self.may_push(number):
            return
        self.seqs[replica] += 1
        (service,) = [s for s in self.services if number in s.cores]
        try:
            service.push(replica, self.members[replica], number, self.seqs[replica])
        except InvalidRequest as error:
            raise AssertionError(error.message) from error

    def may_push(self, number: int) -> bool:
        """A replica pushes step t + 1 of a fragment, or offers it, once it has step t of all."""
        saved = {n: core.saved for s in self.services for n, core in s.cores.items()}
        mine = saved[number]
        return all(
            one.revision > 0 or (one.phase, one.gradient_step) >= (mine.phase, mine.gradient_step)
            for one in saved.values()
        )

    def a_replica_dies(self, replica: str) -> None:
        if self.members.pop(replica, None):
            self.say()

    def a_replica_comes(self, replica: str) -> None:
        if replica not in self.members:
            self.incarnations[replica] += 1
            self.members[replica] = self.incarnations[replica]
            self.seqs[replica] = 0
            self.say()

    def services_vote(self, which: tuple[int, ...], arrives: bool) -> None:
        for index in which:
            if (vote := self.services[index].ending.vote) is not None:
                self.votes.append((index, vote))
                if arrives:
                    self.decide(index, vote)

    def a_vote_arrives(self, at: int) -> None:
        """Any of those ever sent; it may arrive again."""
        if self.votes:
            self.decide(*self.votes[at % len(self.votes)])

    def nobody_is_at_revision_1_before_all_have_their_offers(self) -> None:
        everywhere = [pair for service in self.services for pair in service.disk.values()]
        if not any(saved.revision for saved, _ in everywhere):
            return
        assert self.ended is not None
        for saved, offer in everywhere:
            assert saved.revision or (offer is not None and offer.phase == self.ended)

    def ends_well(self) -> None:
        """From anywhere it ends well, once faults stop: with everybody gone, or with one left."""
        self.settle()
        self.members.clear()
        self.say()
        self.settle()
        stands = {saved.revision for s in self.services for saved, _ in s.disk.values()}
        assert len(stands) == 1, "half of it is at revision 1"
        if stands == {0}:
            cores = [core.saved for s in self.services for core in s.cores.values()]
            assert {one.gradient_step for one in cores} == {0} and len(
                {o.phase for o in cores}
            ) == 1
        self.members = {"c": 1}
        self.seqs["c"] = 0
        self.say()
        for _ in range(STEPS + 2):
            self.settle()
            for number in range(3):
                self.a_replica_pushes("c", number)
        self.settle()
        assert {saved.revision for s in self.services for saved, _ in s.disk.values()} == {1}

    def settle(self) -> None:
        """Everything that is to be said arrives, until nothing changes."""
        for _ in range(4):
            for service in self.services:
                service.adopt(*self.words[-1])
            for service in self.services:
                if (vote := service.ending.vote) is not None:
                    self.decide(service.index, vote)


def something_happens(world: World, chance: random.Random) -> None:
    """One thing, at random, of all that may."""
    one, some = chance.randrange(3), chance.choice([(0,), (1,), (2,), (0, 1, 2)])
    replica, at = chance.choice("ab"), chance.randrange(1_000)
    things: list[Callable[[], None]] = [
        lambda: world.a_service_hears_the_word(one),
        lambda: world.a_service_is_killed_and_goes_on_with_an_old_word(one, at),
        lambda: world.a_replica_pushes_some(replica, some),
        lambda: world.a_replica_dies(replica),
        lambda: world.a_replica_comes(replica),
        lambda: world.services_vote(some, arrives=chance.random() < 0.5),
        lambda: world.a_vote_arrives(at),
    ]
    if chance.randrange(4) == 0:
        things.append(world.the_control_plane_loses_its_database)
    chance.choice(things)()


@pytest.mark.parametrize("steps", [STEPS, 0])
def test_it_ends_for_all_fragments_together_whatever_is_killed_lost_or_said_twice(
    steps: int,
) -> None:
    """``steps`` of the phase are made before anything goes wrong."""
    ended = restarted = 0
    for seed in range(300):
        chance, world = random.Random(seed), World(steps)
        try:
            for _ in range(30):
                something_happens(world, chance)
                world.nobody_is_at_revision_1_before_all_have_their_offers()
            ended += world.ended is not None
            restarted += world.phase.number > 0
            world.ends_well()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert restarted and (ended or not steps), "the simulation must reach what it is about"


def test_the_control_plane_counts_each_service_once_and_only_for_the_phase_under_way() -> None:
    phase = Phase()
    for _ in range(2):
        phase = phases.after(phase, 0, 2, 0, True)
    assert (phase.has_ended, phase.offered) == (False, {0})
    lost = phases.after(phase, 1, 2, 0, False)
    assert (lost.number, lost.offered) == (1, frozenset())
    assert phases.after(lost, 1, 2, 0, True) == lost, "the vote was for the phase before"
    ended = phases.after(phase, 1, 2, 0, True)
    assert ended.has_ended and phases.after(ended, 0, 2, 0, False) == ended


def test_a_control_plane_that_is_behind_its_services_takes_their_number() -> None:
    """Its database is a new one, or an old copy."""
    behind = phases.after(Phase(), 0, 2, 0, True)
    offered = phases.after(behind, 1, 2, 1, True)
    assert offered == Phase(number=1, offered=frozenset({1}))
    assert phases.after(offered, 0, 2, 1, True).has_ended
    assert phases.after(behind, 1, 2, 1, False) == Phase(number=2)


def test_who_has_heard_of_the_end_says_so_where_it_is_forgotten() -> None:
    ending = Ending((0,), is_alone=False)
    ending.offered(0, 0)
    ending.hear(0, True)
    assert ending.vote is None
    ending.hear(0, False)
    assert (ending.vote, ending.decided) == (Vote(0, offered=True), True)
    ending.hear(0, True)
    assert ending.vote is None


def test_a_phase_of_which_the_control_plane_knows_nothing_is_lost_without_all_offers() -> None:
    ending = Ending(range(2), is_alone=False, phase=1)
    ending.offered(0, 1)
    assert ending.vote is None, "it has heard nothing yet"
    ending.hear(0, False)
    assert ending.vote == Vote(1, offered=False)
    ending.offered(1, 1)
    assert ending.vote == Vote(1, offered=True)


def test_a_service_alone_decides_by_itself() -> None:
    ending = Ending(range(2))
    ending.offered(0, 0)
    ending.lost(0)
    assert (ending.phase, ending.decided, ending.vote) == (1, False, None)
    ending.offered(1, 0)  # of the phase before
    for fragment in range(2):
        assert not ending.decided
        ending.offered(fragment, 1)
    ending.lost(1)
    assert ending.decided and ending.phase == 1


@pytest.mark.parametrize("word", [(1, False), (0, True)])
def test_who_has_voted_waits_for_the_word_whatever_becomes_of_its_replicas(word: Word) -> None:
    service = Service(1)
    service.adopt({"a": 1}, (0, False))
    for seq in range(1, STEPS + 2):
        service.push("a", 1, 1, seq)
    assert service.ending.vote == Vote(0, offered=True)
    service.adopt({}, (0, False))
    assert service.ending.vote == Vote(0, offered=True)
    service.adopt({}, word)
    (core,) = service.cores.values()
    assert core.saved.revision == int(word[1]) and service.ending.vote is None
    assert pb.VERDICT_ACCEPTED in {c.verdict for c in core.saved.contributions} or word[0]
