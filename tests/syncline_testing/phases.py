"""A fragment in the synchronous phase of its run, without a service around it."""

from __future__ import annotations

from typing import Any

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.ending import Ending
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Closing, Judgement, Kind
from syncline_testing.pure import whole_push

STEPS = 3


class Phase:
    """A fragment at revision 0 with STEPS gradient steps to go."""

    def __init__(
        self, *replicas: str, number: int = 0, ending: Ending | None = None, **given: Any
    ) -> None:
        given = {"min_replicas": 2, "warmup_steps": STEPS, **given}
        self.settings = RunSettings.model_validate(given)
        self.core = Fragment(self.settings, number=number, ending=ending)
        self.members = dict.fromkeys(replicas, 1)
        self.seqs: dict[str, int] = {}
        self.adopt()
        self.offer(replicas[0], None)
        self.first = self.close()

    def adopt(self, **changed: int | None) -> tuple[str, ...]:
        self.members = {r: i for r, i in {**self.members, **changed}.items() if i is not None}
        return self.core.adopt(0.0, self.members, self.settings, True)

    def push(self, replica: str, **given: Any) -> Judgement:
        self.seqs[replica] = self.seqs.get(replica, 0) + 1
        incarnation = self.members.get(replica, 1)
        push = whole_push(replica, seq=self.seqs[replica], incarnation=incarnation, **given)
        return self.core.judge(0.0, push)

    def gradient(self, replica: str, step: int, **given: Any) -> Judgement:
        return self.push(replica, kind=Kind.GRADIENT, gradient_step=step, base=None, **given)

    def offer(self, replica: str, base: int | None, phase: int | None = None) -> Judgement:
        judgement = self.push(replica, kind=Kind.PARAMETERS, base=base, phase=phase)
        if judgement.sets and self.core.offer is not None:
            self.stored = self.core.offer
            self.core.keep_offer()
        return judgement

    def close(self) -> Closing:
        closed_by = self.core.due(0.0)
        assert closed_by is not None
        return self.core.close(closed_by)

    def step(self, number: int, *replicas: str) -> Closing:
        for replica in replicas:
            assert self.gradient(replica, number).verdict == pb.VERDICT_ACCEPTED
        return self.close()
