"""A fragment under any history of members, pushes and time keeps its invariants.

Times are drawn from a small grid, so that deadlines are met to the second; a plain twin says
which verdict each push must get.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import policy
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Kind, WholePush
from syncline_testing.pure import whole_push

REPLICAS = st.sampled_from(["a", "b", "c", "d"])
MINIMUM = 2
DEADLINE_S = 8
RUN = RunSettings.model_validate(
    {
        "min_replicas": MINIMUM,
        "penalty": {"detector_rounds": 2},
        "timeouts": {"lease": 1, "round_deadline": DEADLINE_S},
    }
)
QUORUM = RunSettings.model_validate(
    {**RUN.model_dump(), "quorum": 2, "grace_seconds": 4, "late": {"age_max": 2}}
)
FOLDED = (pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS)


class FragmentMachine(RuleBasedStateMachine):
    run = RUN

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0
        self.running = True
        self.members: dict[str, int] = {"a": 1, "b": 1}
        self.lives = {"a": 1, "b": 1, "c": 0, "d": 0}
        self.seqs: dict[tuple[str, int], int] = {}
        self.last: dict[str, WholePush] = {}
        self.judged: dict[tuple[str, int, int], int] = {}
        """Every push that entered a round, with its verdict."""
        self.committed: set[tuple[str, int, int]] = set()
        self.core = Fragment(self.run)
        self.adopt()
        self.core.judge(0, whole_push("a", kind=Kind.PARAMETERS, base=None, seq=1))
        self.seqs["a", 1] = 1
        self.drive()

    def adopt(self) -> None:
        self.core.adopt(self.now_s, self.members, self.run, self.running)

    def drive(self) -> None:
        """Close what is due, as the runner does after each event."""
        while (closed_by := self.core.due(self.now_s)) is not None:
            before = self.core.saved.revision if self.core.initialised else -1
            closing = self.core.close(closed_by)
            assert closing.saved.revision == before + 1
            contributions = closing.saved.contributions
            keys = [(c.replica, c.incarnation, c.seq) for c in contributions]
            assert len({(c.replica, c.age > 0) for c in contributions}) == len(keys)
            assert all(c.age <= self.run.age_max for c in contributions)
            assert self.committed.isdisjoint(keys), "folded twice"
            self.committed.update(keys)
            weights = math.fsum(c.weight for c in contributions)
            accepted = [c for c in contributions if c.verdict == pb.VERDICT_ACCEPTED]
            if any(c.age for c in accepted):
                assert 0.0 < weights <= 1.0 + 1e-9
            else:
                assert math.isclose(weights, 1.0, rel_tol=1e-9) if accepted else weights == 0.0

    def must_be(self, push: WholePush) -> tuple[int, ...]:
        """The twin: which verdicts this push may get."""
        key = (push.replica, push.incarnation, push.seq)
        if self.members.get(push.replica) != push.incarnation:
            return (pb.VERDICT_FENCED,)
        if key in self.judged:
            return (pb.VERDICT_DUPLICATE,)
        assert push.base is not None
        age = self.core.saved.revision - push.base
        if not 0 <= age <= self.run.age_max or (push.replica, age > 0) in self.inside:
            return (pb.VERDICT_STALE,)
        if not math.isfinite(push.norm):
            return (pb.VERDICT_ANOMALOUS,)
        return FOLDED

    def send(self, push: WholePush) -> None:
        allowed = self.must_be(push)
        judgement = self.core.judge(self.now_s, push)
        assert judgement.verdict in allowed
        key = (push.replica, push.incarnation, push.seq)
        if judgement.verdict in FOLDED:
            self.judged[key] = judgement.verdict
            is_late = push.base != self.core.saved.revision
            assert judgement.result == self.core.saved.revision + (not is_late)
            assert judgement.counts_in == (self.core.saved.revision + 1 if is_late else 0)
        if judgement.verdict == pb.VERDICT_DUPLICATE and key == self.newest_of(push):
            assert judgement.judged == self.judged[key]
        # An accepted push far over the others may weigh nothing; any other verdict must.
        assert judgement.weight == 0.0 or judgement.verdict == pb.VERDICT_ACCEPTED
        self.drive()

    @property
    def inside(self) -> set[tuple[str, bool]]:
        """Who is in the open round, and whether late."""
        r = self.core._round
        return set(r.entries) if r else set()

    @rule(replica=REPLICAS)
    def come(self, replica: str) -> None:
        """Join, or come back as a new life."""
        self.lives[replica] += 1
        self.members[replica] = self.lives[replica]
        self.adopt()
        self.drive()

    @rule(replica=REPLICAS)
    def go(self, replica: str) -> None:
        self.members.pop(replica, None)
        self.adopt()
        self.drive()

    @rule()
    def pause_or_go_on(self) -> None:
        self.running = not self.running
        self.adopt()
        self.drive()

    @rule(
        replica=REPLICAS,
        behind=st.sampled_from([0, 0, 0, 1, 2, 3]),
        norm=st.sampled_from([1.0, 1.0, 1.1, 500.0, math.nan]),
    )
    def push(self, replica: str, behind: int, norm: float) -> None:
        life = self.lives[replica] or 1
        seq = self.seqs[replica, life] = self.seqs.get((replica, life), 0) + 1
        base = max(0, self.core.saved.revision - behind)
        push = whole_push(replica, incarnation=life, seq=seq, base=base, norm=norm)
        self.last[replica] = push
        self.send(push)

    def newest_of(self, push: WholePush) -> tuple[str, int, int]:
        """The key of the newest push of its replica that a round holds: its verdict is known."""
        life = (push.replica, push.incarnation)
        return max(key for key in self.judged if key[:2] == life)

    @rule(replica=REPLICAS)
    def send_again(self, replica: str) -> None:
        if replica in self.last:
            self.send(self.last[replica])

    @rule(replica=REPLICAS)
    def an_older_life_pushes(self, replica: str) -> None:
        if replica in self.last:
            self.send(replace(self.last[replica], incarnation=0, seq=99))

    @rule(seconds=st.sampled_from([1, 4, DEADLINE_S]))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        self.drive()

    @rule(missing=st.sampled_from(["", "a", "b", "c"]))
    def all_but_one_push_and_the_deadline_comes(self, missing: str) -> None:
        """Then a round with the minimum in it has closed, whoever came, went or was excluded."""
        there = self.members.keys() - {missing}
        if len(there) < MINIMUM or not self.running:
            return
        before = self.core.saved.revision
        for replica in sorted(there):
            if self.core.saved.revision == before and replica not in self.core.arrived:
                self.push(replica, 0, 1.0)
        self.wait(DEADLINE_S)
        assert self.core.saved.revision > before

    @rule()
    def the_service_restarts(self) -> None:
        """What was folded and not committed is forgotten, and may be sent again."""
        self.core = Fragment(self.run, self.core.saved)
        self.judged = {key: v for key, v in self.judged.items() if key in self.committed}
        self.adopt()
        self.drive()

    @invariant()
    def nobody_waits_for_who_is_not_there(self) -> None:
        missing = set(self.core.expected) - set(self.core.arrived)
        assert missing <= self.members.keys()
        if len({replica for replica, _ in self.inside}) >= MINIMUM:
            assert missing, "everyone is in, and still it is open"

    @invariant()
    def no_round_outlives_its_deadline(self) -> None:
        r = self.core._round
        deadline_s = policy.deadline_of(r, self.core.settings) if r and self.core.running else None
        if deadline_s is not None and self.now_s >= deadline_s:
            assert len({replica for replica, _ in self.inside}) < MINIMUM


class QuorumMachine(FragmentMachine):
    """Rounds that close without everyone, and take what comes late."""

    run = QUORUM


@pytest.mark.parametrize("machine", [FragmentMachine, QuorumMachine])
def test_any_history_keeps_the_invariants(machine: type[FragmentMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
